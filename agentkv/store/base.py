"""What every store does. `MemoryStore` is the specification; `agentkv.testing` holds the conformance
suite."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Note:
    """What is kept beside an entry for the planner, which sees no tensors.

    hearsay: KL of second hand in it (see `Placement`). context: the antecedents behind ``Key.context``, where
    it is a context key, so that a later plan can tell how far another context is from this one.
    """

    hearsay: float = 0.0
    context: Context | None = None


class Store(Protocol):
    """A map from Key to KVBlock or Patch inside a byte budget. Every method is atomic and thread-safe.

    What `get` returns shares no memory with any running window, and callers must not write to it.
    """

    def put(self, key: Key, entry: Entry, note: Note | None = None) -> bool:
        """Keep the entry, which the caller hands over; a block that is a view of something larger is copied.

        note: None keeps nothing beside it. False when it can never fit the budget (nothing else was dropped
        for it).
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

    def held(self, chunk: str) -> Mapping[Key, Note]:
        """What is there for one chunk, at a cost that does not depend on the rest. The order of use stays."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of all entries' tensors."""
        ...


def residency(store: Store, chunks: Mapping[str, int]) -> FrozenResidency:
    """What the planner may know of a store: which kinds exist per chunk, no tensors.

    chunks: those of interest, by id, with their tokens.
    """
    residents, contexts = dict[str, Resident](), dict[str, Context]()
    for chunk, tokens in chunks.items():
        notes = store.held(chunk)
        if not notes:
            continue
        kinds: dict[Kind, set[str]] = {}
        hearsay: dict[str, float] = {}
        for key, note in notes.items():
            kinds.setdefault(key.kind, set()).add(key.context)
            hearsay[key.context] = max(note.hearsay, hearsay.get(key.context, 0.0))
            if note.context is not None:
                contexts[key.context] = note.context
        residents[chunk] = Resident(
            tokens=tokens,
            canonical="canonical" in kinds,
            conditioned=frozenset(kinds.get("conditioned", ())),
            patches=frozenset(kinds.get("patch", ())),
            orbits=frozenset(kinds.get("orbit", ())),
            removals=frozenset(kinds.get("removal", ())),
            hearsay={key: kl for key, kl in hearsay.items() if kl > 0},
        )
    return FrozenResidency(residents, contexts)
