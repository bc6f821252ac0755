"""What every store does. `MemoryStore` is the specification; `agentkv.testing` holds the conformance
suite."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple, Protocol

from agentkv_orchestrator.residency import Context, FrozenResidency, Resident

from agentkv.kv import KVBlock
from agentkv.patches import Patch

Kind = Literal["canonical", "conditioned", "patch", "orbit", "removal"]
Entry = KVBlock | Patch


class Key(NamedTuple):
    """kind: what is stored. chunk: chunk id (it covers token ids and the model's fingerprint).
    context: what it was conditioned on: "" for a canonical, a context key, a set key for an orbit, or
    "before>after" for a removal."""

    kind: Kind
    chunk: str
    context: str = ""


class Store(Protocol):
    """A map from Key to KVBlock or Patch inside a byte budget. Every method is atomic and thread-safe.

    What `get` returns shares no memory with any running window, and callers must not write to it.
    """

    def put(self, key: Key, entry: Entry) -> bool:
        """Keep the entry, which the caller hands over; a block that is a view of something larger is copied.

        False when it can never fit the budget (nothing else was dropped for it).
        """
        ...

    def get(self, key: Key) -> Entry | None:
        """The entry, or None when it is not (or no longer) there."""
        ...

    def drop(self, key: Key) -> bool:
        """Forget the entry; whether there was one."""
        ...

    def keys(self) -> Iterable[Key]:
        """All keys, least recently used first."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of all entries' tensors."""
        ...


def residency(
    store: Store,
    contexts: Mapping[str, Context],
    hearsay: Mapping[tuple[str, str], float],
    length: Callable[[str], int | None],
) -> FrozenResidency:
    """What the planner may know of a store: which kinds exist per chunk, no tensors.

    contexts: what context keys stand for; those that no entry refers to are left out. length: tokens of a
    chunk; None for one that this engine has never seen (others may use the store), which is left out.
    """
    held: dict[str, dict[Kind, set[str]]] = {}
    for key in store.keys():  # noqa: SIM118  (a store is no dict)
        held.setdefault(key.chunk, {}).setdefault(key.kind, set()).add(key.context)
    residents = {
        chunk: Resident(
            tokens=tokens,
            canonical="canonical" in kinds,
            conditioned=frozenset(kinds.get("conditioned", ())),
            patches=frozenset(kinds.get("patch", ())),
            orbits=frozenset(kinds.get("orbit", ())),
            removals=frozenset(kinds.get("removal", ())),
            hearsay={
                key: kl for key in set().union(*kinds.values()) if (kl := hearsay.get((chunk, key), 0.0)) > 0
            },
        )
        for chunk, kinds in held.items()
        if (tokens := length(chunk)) is not None
    }
    referred = {key for r in residents.values() for key in (*r.conditioned, *r.patches)}
    return FrozenResidency(residents, {key: c for key, c in contexts.items() if key in referred})
