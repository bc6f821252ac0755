"""Evictors against the slow, obvious way to say who leaves."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from agentkv_orchestrator.errors import PolicyError
from agentkv_orchestrator.eviction import EVICTORS, Benefit, Evictor, Foresight, Item, Random, evictor, saved
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import COSTS

Calls = list[tuple[str, int, int, bool]]
calls = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "use", "drop", "need"]),
        st.integers(0, 9),
        st.integers(1, 40),
        st.booleans(),
    ),
    max_size=80,
)


class Books:
    """All that ever happened, in lists."""

    def __init__(self) -> None:
        self.items: dict[int, Item] = {}
        self.came: dict[int, int] = {}
        self.used: dict[int, int] = {}
        self.uses: dict[int, int] = {}
        self.now = 0

    def put(self, key: int, item: Item) -> None:
        self.items[key], self.uses[key] = item, 0
        self.came[key] = self.used[key] = self.now

    def use(self, key: int) -> None:
        if key in self.items:
            self.used[key] = self.now
            self.uses[key] += 1


def order(name: str, books: Books) -> Callable[[int], tuple[int, ...]]:
    return {
        "lru": lambda key: (books.used[key],),
        "fifo": lambda key: (books.came[key],),
        "lfu": lambda key: (books.uses[key], books.used[key]),
    }[name]


@pytest.mark.parametrize("name", ["lru", "fifo", "lfu"])
@settings(deadline=None)
@given(played=calls)
def test_the_simple_ones_are_what_they_are_called(name: str, played: Calls) -> None:
    found, books = evictor(name), Books()
    for what, key, size, pinned in played:
        books.now += 1
        if what == "put":
            item = Item(size, "a", 1.0, pinned)
            books.put(key, item)
            found.put(key, item)
        elif what == "use":
            books.use(key)
            found.use(key)
        elif what == "drop":
            books.items.pop(key, None)
            found.drop(key)
        else:
            free = sorted(
                (k for k in books.items if k != key and not books.items[k].pinned), key=order(name, books)
            )
            wanted, freed = list[int](), 0
            for k in free:
                if freed < size:
                    wanted.append(k)
                    freed += books.items[k].nbytes
            assert found.victims(size, key) == (wanted if freed >= size else None)


@pytest.mark.parametrize("name", EVICTORS)
@settings(deadline=None)
@given(played=calls)
def test_victims_are_there_enough_and_never_pinned(name: str, played: Calls) -> None:
    found, items = evictor(name), dict[int, Item]()
    for what, key, size, pinned in played:
        if what == "put":
            items[key] = Item(size, "ab"[key % 2], float(key), pinned)
            found.put(key, items[key])
        elif what == "use":
            found.use(key)
        elif what == "drop":
            items.pop(key, None)
            found.drop(key)
        else:
            free = sum(item.nbytes for k, item in items.items() if k != key and not item.pinned)
            victims = found.victims(size, key)
            assert (victims is None) == (free < size)
            for victim in victims or ():
                assert isinstance(victim, int)
                assert victim != key
                assert not items.pop(victim).pinned
                found.drop(victim)


def test_benefit_keeps_what_is_dear_to_compute_for_its_bytes() -> None:
    found = Benefit()
    found.put("cheap", Item(100, "x", 1.0))
    found.put("dear", Item(100, "x", 50.0))
    found.put("dear and large", Item(10_000, "x", 50.0))
    assert found.victims(1, "new") == ["dear and large"]
    found.drop("dear and large")
    assert found.victims(1, "new") == ["cheap"]


def test_benefit_learns_which_kind_is_reused() -> None:
    found = Benefit()
    for i in range(8):
        found.put(("tool", i), Item(10, "tool", 5.0))
        found.put(("document", i), Item(10, "document", 5.0))
        found.use(("document", i))
        found.drop(("tool", i))
        found.drop(("document", i))
    found.put("a document", Item(10, "document", 5.0))
    found.put("a tool", Item(10, "tool", 5.0))
    assert found.victims(1, "new") == ["a tool"]


def test_benefit_forgets_what_was_useful_long_ago() -> None:
    """A rank grows by what left since, so a favourite of the past ends up below what is used now."""
    found = Benefit()
    found.put("old favourite", Item(10, "x", 10.0))
    for _ in range(5):
        found.use("old favourite")
    for i in range(200):
        found.put(i, Item(10, "x", 10.0))
        victims = found.victims(10, i)
        assert victims is not None
        for victim in victims:
            found.drop(victim)
        if victims == ["old favourite"]:
            break
    assert "old favourite" in (victims or ())


def test_foresight_drops_what_is_needed_latest() -> None:
    needed = {"a": 3.0, "b": float("inf"), "c": 1.0}
    found = Foresight(lambda key: needed[str(key)])
    for key in needed:
        found.put(key, Item(10))
    assert found.victims(20, "new") == ["b", "a"]


def test_random_is_uniform() -> None:
    counts = dict.fromkeys(range(8), 0)
    found = Random(1)
    for key in counts:
        found.put(key, Item(1))
    for _ in range(4000):
        (victim,) = found.victims(1, "new") or ()
        counts[victim] += 1  # type: ignore[index]
    assert max(counts.values()) < 1.25 * min(counts.values())


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(PolicyError, match="one of lru, benefit"):
        evictor("clock")


def work(found: Evictor[int], entries: int) -> float:
    """Python and C calls a decision: a store is filled, then every entry makes room for another."""
    count = 0

    def counting(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counting)
    try:
        for i in range(2 * entries):
            for victim in (found.victims(1, i) or ()) if i >= entries else ():
                found.drop(victim)
            found.put(i, Item(1, "x", float(i % 7)))
            found.use(i - i % 3)
    finally:
        sys.setprofile(None)
    return count / entries


@pytest.mark.parametrize("name", EVICTORS)
def test_a_decision_does_not_grow_with_the_store(name: str) -> None:
    """What a heap does by itself is C; what is counted are the rows that are looked at."""
    assert work(evictor(name), 6000) <= 1.5 * work(evictor(name), 300)


def test_what_an_entry_saves_is_computing_less_bringing() -> None:
    assert saved(COSTS, "conditioned", 100, 50) == pytest.approx(100 * (1 + 0.001 * 100) - 100 * 0.02)
    assert saved(COSTS, "patch", 100) < saved(COSTS, "canonical", 100)
