"""What users hold of a window's content, and how a window keeps track of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import NamedTuple

from agentkv_orchestrator.chunks import Chunk
from agentkv_orchestrator.diff import Wanted
from agentkv_orchestrator.history import History
from agentkv_orchestrator.window import WindowGraph

from agentkv.media import Media


@dataclass(frozen=True)
class Handle:
    """One appended message or answer. Pass it to evict, recall, move and the like.

    id: unique in the engine. kind: as given to append. tokens: its length. preview: the first words, for
    people.
    """

    id: int
    kind: str
    tokens: int
    preview: str

    @property
    def name(self) -> str:
        """What plans and histories call it."""
        return f"{self.kind} {self.preview[:24]!r}"

    def __repr__(self) -> str:
        return f"<{self.kind} #{self.id}: {self.preview!r}, {self.tokens} tokens>"


def words(text: str) -> str:
    """The first words of a message, for people."""
    return " ".join(text.split())[:48]


@dataclass(frozen=True)
class Entry:
    """A handle's state in one window: its chunks in order, each with the uid of its placement.

    order_free: its order-free neighbours may change places with it. recalls: how often it was recalled. used:
    the engine's number when it came, or was recalled last. media: what the chunks stand for where they are
    images; an entry keeps them alive, so that a recall needs no vision tower.
    """

    handle: Handle
    parts: tuple[tuple[int, Chunk], ...]
    pinned: bool = False
    clean: bool = False
    order_free: bool = False
    recalls: int = 0
    used: int = 0
    media: tuple[Media, ...] = ()

    def wanted(self) -> list[Wanted]:
        free = self.handle.id if self.order_free and not self.pinned else None
        return [
            Wanted(uid=uid, chunk=chunk, clean=self.clean, pinned=self.pinned, order_free=free)
            for uid, chunk in self.parts
        ]


def renumbered(entry: Entry, first: int) -> tuple[tuple[int, Chunk], ...]:
    """The parts of ``entry`` under uids from ``first`` on: placements of its own."""
    return tuple(enumerate((chunk for _, chunk in entry.parts), first))


@dataclass(frozen=True)
class Content:
    """What a window is asked to hold: live handle ids in order, and every entry that it remembers."""

    order: tuple[int, ...] = ()
    entries: tuple[tuple[int, Entry], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_id", dict(self.entries))

    def get(self, handle_id: int) -> Entry | None:
        return self._by_id.get(handle_id)  # type: ignore[attr-defined]

    def live(self) -> list[Entry]:
        return [self._by_id[i] for i in self.order]  # type: ignore[attr-defined]

    def names(self) -> dict[int, str]:
        """By uid: kind and first words of every message this window remembers."""
        entries = self._by_id.values()  # type: ignore[attr-defined]
        return {uid: e.handle.name for e in entries for uid, _ in e.parts}

    @property
    def tokens(self) -> int:
        return sum(e.handle.tokens for e in self.live())

    def wanted(self) -> list[Wanted]:
        return [w for e in self.live() for w in e.wanted()]

    def with_entry(self, entry: Entry, at: int | None = None) -> Content:
        """``entry`` put at index ``at`` of the order (None: unchanged order), replacing its earlier state."""
        known = {**self._by_id, entry.handle.id: entry}  # type: ignore[attr-defined]
        order = self.order if at is None else (*self.order[:at], entry.handle.id, *self.order[at:])
        return Content(order, tuple(known.items()))

    def with_entries(self, entries: Iterable[Entry], order: tuple[int, ...]) -> Content:
        """These in the place of their earlier states, and another order."""
        known = {**self._by_id, **{e.handle.id: e for e in entries}}  # type: ignore[attr-defined]
        return Content(order, tuple(known.items()))

    def without(self, ids: set[int]) -> Content:
        """These out of the order; their entries stay known."""
        return self.with_order(tuple(i for i in self.order if i not in ids))

    def forgotten(self, handle_id: int) -> Content:
        """As if this message had never been in the window."""
        entries = tuple((i, entry) for i, entry in self.entries if i != handle_id)
        return Content(tuple(i for i in self.order if i != handle_id), entries)

    def known(self) -> list[Entry]:
        """Every message this window remembers."""
        return list(self._by_id.values())  # type: ignore[attr-defined]

    def remembering(self, count: int) -> Content:
        """Without those messages that are not live, but for the ``count`` that came or were recalled last."""
        live = set(self.order)
        gone = [e for _, e in self.entries if e.handle.id not in live]
        if len(gone) <= count:
            return self
        old = nsmallest(len(gone) - count, gone, key=lambda e: max(e.used, e.handle.id))
        forgotten = {e.handle.id for e in old}
        return Content(self.order, tuple(item for item in self.entries if item[0] not in forgotten))

    def as_placed(self, wanted: Sequence[Wanted]) -> Content:
        """The messages in the order in which `wanted` has their chunks."""
        message = {uid: e.handle.id for e in self.live() for uid, _ in e.parts}
        return self.with_order(tuple(dict.fromkeys(message[w.uid] for w in wanted)))

    def with_order(self, order: tuple[int, ...]) -> Content:
        return Content(order, self.entries)


class Unanswered(NamedTuple):
    """What a window holds in front of an answer that is under way. row: where the answer begins."""

    graph: WindowGraph
    content: Content
    past: History[tuple[Entry, ...]]
    row: int
