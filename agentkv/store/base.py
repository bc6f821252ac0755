"""What every store does. `MemoryStore` is the specification; `agentkv.testing` holds the conformance
suite."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from agentkv_orchestrator.residency import Context, FrozenResidency, Held, Resident

from agentkv.inputs import Ids
from agentkv.kv import KVBlock
from agentkv.media import Media
from agentkv.patches import Patch
from agentkv.store.key import PLAIN, Key, Kind, Miss, Note, Refusal, Stats

__all__ = [
    "PLAIN", "Document", "Entry", "Found", "Key", "Kind", "Miss", "Note", "Origin", "Refusal", "Stats",
    "Store", "Stored", "residency",
]  # fmt: skip


@dataclass(frozen=True)
class Document:
    """Text that is kept as it is: what a saved window says of itself, or an item of an agent's store."""

    text: bytes

    @property
    def nbytes(self) -> int:
        return len(self.text)


Entry = KVBlock | Patch | Media | Document
UNPLANNED: frozenset[Kind] = frozenset({"features", "rows", "window", "item"})
"""Kinds that no plan counts on."""


@dataclass(frozen=True, eq=False)
class Origin:
    """What an entry was computed from, compared on every hit: int64 ids ``[T]``, the digest of the pixels
    behind them (b"" for text), and the fingerprint of the model."""

    ids: Ids
    modality: bytes
    fingerprint: str

    def same(self, other: Origin | None) -> bool:
        """Whether the two are of one content and one model."""
        return (
            other is not None
            and self.fingerprint == other.fingerprint
            and self.modality == other.modality
            and np.array_equal(self.ids, other.ids)
        )


class Stored(NamedTuple):
    """What `get` finds. origin: None where whoever stored it did not say."""

    entry: Entry
    note: Note = PLAIN
    origin: Origin | None = None


class Found(NamedTuple):
    """What `held` tells of one entry. tier: name of the nearest store that has it; nbytes: in that one."""

    note: Note
    nbytes: int
    tier: str


class Store(Protocol):
    """A map from Key to entries inside a byte budget. Every method is atomic and thread-safe, and none raises
    for what a medium does: what cannot be read is a miss, what cannot be written is refused, both counted.

    What `get` returns shares no memory with a file, nor with a running window but for the rows that it was
    given to fill, and callers must not write to it.
    """

    tier: str
    """What the planner calls it: "device", "host", "disk", "redis"."""

    def put(self, key: Key, entry: Entry, note: Note = PLAIN, origin: Origin | None = None) -> bool:
        """Keep the entry, which the caller hands over; a block that is a view of something larger is copied.

        False when it is not kept (nothing else was dropped for what can never fit). A store that writes later
        says True for what it has taken in.
        """
        ...

    def get(self, key: Key, rows: KVBlock | None = None) -> Stored | None:
        """The entry, or None when it is not (or no longer) there, or not whole.

        rows: views of rows of a window that are not live. A store that reads from a medium may read a block
        of their shape and dtype into these, and not into memory of its own; the entry is then a block over
        them. Whatever comes back, what they held is void.
        """
        ...

    def drop(self, key: Key) -> bool:
        """Forget the entry; whether there was one."""
        ...

    def keys(self, tenant: str | None = None) -> Collection[Key]:
        """All keys, or those of one tenant, least recently used first. On a disk or a server what others have
        does not add to the cost of those."""
        ...

    def origins(self, keys: Collection[Key]) -> Mapping[Key, Origin]:
        """What these entries were computed from, where that is told and can be read, without their tensors.
        It counts as no use and no look-up."""
        ...

    def held(self, chunks: Collection[str], tenant: str = "") -> Mapping[Key, Found]:
        """What one tenant has of these chunks, at a cost that does not depend on the rest: one look-up for
        all of them. The order of use stays."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of all entries: of their tensors in memory, of their files on a disk."""
        ...

    def stats(self) -> Stats:
        """Sizes and counts."""
        ...

    def flush(self) -> None:
        """Wait until what was put is where it stays."""
        ...

    def close(self) -> None:
        """Flush, and let go of files and connections. Closing twice is fine."""
        ...


def residency(
    store: Store, chunks: Mapping[str, int], without: Collection[Key] = frozenset()
) -> FrozenResidency:
    """What the planner may know of a store: which kinds exist per chunk, no tensors.

    chunks: those of interest, by id, with their tokens. without: keys that were found missing.
    """
    residents, contexts = dict[str, Resident](), dict[str, Context]()
    by_chunk: dict[str, list[tuple[Key, Found]]] = {}
    for key, found in store.held(chunks).items():
        if key not in without and key.kind not in UNPLANNED:
            by_chunk.setdefault(key.chunk, []).append((key, found))
    for chunk, entries in by_chunk.items():
        kinds: dict[Kind, set[str]] = {}
        hearsay: dict[str, float] = {}
        where: dict[str, dict[str, Held]] = {}
        for key, (note, nbytes, tier) in entries:
            kinds.setdefault(key.kind, set()).add(key.context)
            where.setdefault(key.kind, {})[key.context] = Held(tier, nbytes)
            hearsay[key.context] = max(note.hearsay, hearsay.get(key.context, 0.0))
            if note.context is not None:
                contexts[key.context] = note.context
        residents[chunk] = Resident(
            tokens=chunks[chunk],
            canonical="canonical" in kinds,
            conditioned=frozenset(kinds.get("conditioned", ())),
            patches=frozenset(kinds.get("patch", ())),
            orbits=frozenset(kinds.get("orbit", ())),
            removals=frozenset(kinds.get("removal", ())),
            hearsay={key: kl for key, kl in hearsay.items() if kl > 0},
            where=where,
        )
    return FrozenResidency(residents, contexts)
