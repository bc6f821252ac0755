"""Which entries leave a store that is full.

An evictor keeps books on keys and sizes, never on tensors. Whoever holds the entries tells it what came, was
used and went, and asks it who is to make room. Every call takes O(log n).
"""

import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from .cost import CostTable, Timed
from .errors import PolicyError

K = TypeVar("K", bound=Hashable)
"""Whatever the entries are kept under."""


class Item(NamedTuple):
    """What an evictor knows of an entry.

    kind: entries of one kind are reused about as often. ms: how much longer it takes to bring the chunk back
    once the entry is gone. pinned: never leaves for another.
    """

    nbytes: int
    kind: str = ""
    ms: float = 0.0
    pinned: bool = False


class Evictor(Protocol[K]):
    """Chooses victims; whoever asked drops them and says so with `drop`."""

    def put(self, key: K, item: Item) -> None:
        """The entry came, or another one under its key."""

    def use(self, key: K) -> None:
        """It was read. Unknown keys are ignored."""

    def drop(self, key: K) -> None:
        """It is gone. Unknown keys are ignored."""

    def victims(self, need: int, key: K) -> list[K] | None:
        """Entries that free at least `need` bytes for `key`, first to leave first; None when no choice does,
        as the rest is pinned. `key` is never among them."""


@dataclass(slots=True)
class Held:
    """An entry in the books of `Ranked`, which counts its own events."""

    item: Item
    came: int
    used: int
    uses: int = 0
    level: float = 0.0
    """Where the level of `Benefit` stood when it was touched last."""
    row: int = 0
    """The number of its valid row in the heap."""


_SLACK = 64
"""Outdated rows that are not worth building a heap anew."""


class Ranked(Generic[K]):
    """The least rank leaves first; of equals, what was touched least recently.

    A heap whose outdated rows are skipped, not taken out; it is built anew when most of it is outdated.
    """

    def __init__(self) -> None:
        self._held: dict[K, Held] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._now = 0

    def rank(self, key: K, held: Held) -> float:
        """Of an entry that has just come or been used."""
        raise NotImplementedError

    def left(self, rank: float) -> None:
        """An entry of this rank leaves for another."""

    def put(self, key: K, item: Item) -> None:
        held = Held(item, self._now, self._now)
        self._held[key] = held
        self._push(key, held)

    def use(self, key: K) -> None:
        held = self._held.get(key)
        if held is not None:
            held.used, held.uses = self._now, held.uses + 1
            self._push(key, held)

    def drop(self, key: K) -> None:
        self._held.pop(key, None)

    def victims(self, need: int, key: K) -> list[K] | None:
        found: list[tuple[float, int, K]] = []
        apart: list[tuple[float, int, K]] = []
        freed = 0
        while freed < need and self._heap:
            row = heappop(self._heap)
            held = self._held.get(row[2])
            if held is None or held.row != row[1]:
                continue
            if held.item.pinned or row[2] == key:
                apart.append(row)
                continue
            found.append(row)
            freed += held.item.nbytes
        for row in (*found, *apart):  # still there until they are dropped
            heappush(self._heap, row)
        if freed < need:
            return None
        for rank, _, _ in found:
            self.left(rank)
        return [k for _, _, k in found]

    def _push(self, key: K, held: Held) -> None:
        self._now += 1
        held.row = self._now
        heappush(self._heap, (self.rank(key, held), held.row, key))
        if len(self._heap) > 2 * len(self._held) + _SLACK:
            self._rebuild()

    def _rebuild(self) -> None:
        self._heap = [(self.rank(key, held), held.row, key) for key, held in self._held.items()]
        heapify(self._heap)


class LRU(Ranked[K]):
    """The least recently used leaves."""

    def rank(self, key: K, held: Held) -> float:
        return held.used


class FIFO(Ranked[K]):
    """What came first leaves first."""

    def rank(self, key: K, held: Held) -> float:
        return held.came


class LFU(Ranked[K]):
    """The least often used leaves; of equals, the one that was used least recently."""

    def rank(self, key: K, held: Held) -> float:
        return held.uses


class Benefit(Ranked[K]):
    """The least benefit per byte leaves: expected reuses × ms saved by each / bytes.

    Greedy-Dual-Size-Frequency (Cherkasova 1998): rank = level + benefit, where the level is the rank of what
    left last, so that what was useful long ago does not stay for ever. An entry is expected to be reused as
    often as it was, and as entries of its kind were on average.
    """

    def __init__(self) -> None:
        super().__init__()
        self._level = 0.0
        self._kinds: dict[str, list[int]] = {}  # entries that came, uses of all of them
        self._rates: dict[str, float] = {}

    def put(self, key: K, item: Item) -> None:
        self._learn(item.kind, came=1)
        super().put(key, item)

    def use(self, key: K) -> None:
        held = self._held.get(key)
        if held is not None:
            self._learn(held.item.kind, uses=1)
        super().use(key)

    def rank(self, key: K, held: Held) -> float:
        if held.row == self._now:  # touched just now
            held.level = self._level
        reuses = held.uses + self._rates[held.item.kind]
        return held.level + reuses * held.item.ms / max(1, held.item.nbytes)

    def left(self, rank: float) -> None:
        self._level = max(self._level, rank)

    def _learn(self, kind: str, came: int = 0, uses: int = 0) -> None:
        """Count, and rank anew what is there once a kind's rate has doubled or halved: seldom, and entries of
        a kind are held against each other by one rate."""
        counts = self._kinds.setdefault(kind, [0, 0])
        counts[0] += came
        counts[1] += uses
        rate, known = (counts[1] + 1) / (counts[0] + 1), self._rates.get(kind, 0.0)
        if not known / 2 < rate < known * 2:
            self._rates[kind] = rate
            self._rebuild()


class Foresight(Ranked[K]):
    """Belady's choice: what is needed latest, or never again, leaves. For bounds, as it asks the future.

    next_use: the time at which a key is needed next; infinity for never.
    """

    def __init__(self, next_use: Callable[[K], float]) -> None:
        super().__init__()
        self._next_use = next_use

    def rank(self, key: K, held: Held) -> float:
        return -self._next_use(key)


class Random(Generic[K]):
    """Anyone may leave: the control of every comparison."""

    def __init__(self, seed: int = 0) -> None:
        self._draw = random.Random(seed)
        self._items: dict[K, Item] = {}
        self._keys: list[K] = []  # those that are not pinned
        self._at: dict[K, int] = {}

    def put(self, key: K, item: Item) -> None:
        self.drop(key)
        self._items[key] = item
        if not item.pinned:
            self._at[key] = len(self._keys)
            self._keys.append(key)

    def use(self, key: K) -> None:
        pass

    def drop(self, key: K) -> None:
        self._items.pop(key, None)
        at = self._at.pop(key, None)
        if at is not None:
            last = self._keys.pop()
            if last != key:
                self._keys[at], self._at[last] = last, at

    def victims(self, need: int, key: K) -> list[K] | None:
        freed, count = 0, len(self._keys)
        for chosen in range(count):  # a shuffle that ends early: those in front of `chosen` are drawn
            if freed >= need:
                return [k for k in self._keys[:chosen] if k != key]
            self._swap(chosen, self._draw.randrange(chosen, count))
            freed += 0 if self._keys[chosen] == key else self._items[self._keys[chosen]].nbytes
        return [k for k in self._keys if k != key] if freed >= need else None

    def _swap(self, i: int, j: int) -> None:
        self._keys[i], self._keys[j] = self._keys[j], self._keys[i]
        self._at[self._keys[i]], self._at[self._keys[j]] = i, j


EvictorName = Literal["lru", "benefit", "lfu", "fifo", "random"]
EVICTORS: dict[str, Callable[[], Evictor[Any]]] = {
    "lru": LRU,
    "benefit": Benefit,
    "lfu": LFU,
    "fifo": FIFO,
    "random": Random,
}
"""By name; the first one is the default of a store."""


def evictor(name: str) -> Evictor[Any]:
    """A fresh evictor. Raises PolicyError for an unknown name."""
    if name not in EVICTORS:
        raise PolicyError(f"evictor {name!r}", f"one of {', '.join(EVICTORS)}", "pick one of them")
    return EVICTORS[name]()


def reuse_rate(uses: int, kind_uses: int, kind_members: int, age: int) -> float:
    """How often something is expected to be used again, per event: its own uses and those its kind had on
    average, over the events since it was used last (Blankstein et al. 2017, hyperbolic caching)."""
    return (uses + (kind_uses + 1) / (kind_members + 1)) / (age + 1)


BROUGHT: dict[str, tuple[Timed, ...]] = {
    "canonical": ("place_canonical",),
    "conditioned": ("load",),
    "patch": ("place_canonical", "apply_patch"),
    "orbit": ("place_canonical", "apply_orbit"),
    "removal": ("rotate", "apply_removal"),
}
"""How each kind of entry is used."""


def saved(costs: CostTable, kind: str, tokens: int, rows_in_front: int = 0) -> float:
    """Milliseconds that an entry saves when its chunk comes back: computing it instead, less using it.

    Raises PlanError when the table lacks an op.
    """
    computed = costs.of("prefill").more(tokens, rows_in_front)
    return max(0.0, computed - sum([costs.time(op, tokens) for op in BROUGHT[kind]]))
