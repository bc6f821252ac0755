"""A store that asks an evictor: pins, prices and the budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch
from agentkv_kernels.types import Factors
from agentkv_orchestrator.eviction import EVICTORS, Benefit, evictor, saved
from agentkv_orchestrator.residency import Context

from agentkv.errors import InvalidInput
from agentkv.patches import Budget, form
from agentkv.store.base import Key, Note, Store
from agentkv.store.disk import DiskStore
from agentkv.store.memory import MemoryStore, by_size
from agentkv.store.price import price_by
from agentkv.store.redis import RedisStore
from agentkv.store.tiers import TieredStore
from agentkv.testing import StoreConformance, kv_block, recording_engine, same_bits
from tests.strategies import COSTS

UNIT = kv_block(4).nbytes


def key(name: int) -> Key:
    return Key("conditioned", f"chunk{name}", "context")


class TestDiskByBenefit(StoreConformance):
    """And on a disk."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.root = tmp_path

    def make(self, budget: int) -> Store:
        store = DiskStore(self.root / uuid4().hex, budget)
        store.evict_by("benefit", by_size)
        return store

    def test_the_least_recently_used_leaves_first(self) -> None:
        """Where all are worth the same."""
        store = self.make_for(3)
        for name in (1, 2, 3, 4):
            store.put(key(name), kv_block(24, name))
        assert tuple(store.keys()) == (key(2), key(3), key(4))


class TestByBenefit(StoreConformance):
    """All that a store promises holds whoever makes room."""

    def make(self, budget: int) -> Store:
        return MemoryStore(budget, evictor=Benefit)

    def test_the_least_recently_used_leaves_first(self) -> None:
        """Among those that were read as often; `keys` is in the order of use whoever leaves."""
        store = MemoryStore(3 * UNIT, evictor=Benefit)
        for name in (1, 2, 3):
            store.put(key(name), kv_block(4, name))
        store.get(key(1))
        assert tuple(store.keys()) == (key(2), key(3), key(1))
        store.put(key(4), kv_block(4))
        assert tuple(store.keys()) == (key(3), key(1), key(4))


def test_what_was_read_outlives_what_was_not() -> None:
    store = MemoryStore(3 * UNIT, evictor=Benefit)
    for name in (1, 2, 3):
        store.put(key(name), kv_block(4, name))
    store.get(key(1))
    store.put(key(4), kv_block(4))
    assert set(store.keys()) == {key(1), key(3), key(4)}


def test_a_dear_context_outlives_a_cheap_one() -> None:
    store = MemoryStore(2 * UNIT, evictor=Benefit, price=price_by(COSTS))
    store.put(key(1), kv_block(4), Note(context=Context(chunks=("x",), tokens=4000)))
    store.put(key(2), kv_block(4), Note(context=Context(chunks=("y",), tokens=40)))
    store.put(key(3), kv_block(4), Note(context=Context(chunks=("z",), tokens=400)))
    assert set(store.keys()) == {key(1), key(3)}


def behind(tokens: int) -> Note:
    return Note(context=Context(chunks=(f"of {tokens}",), tokens=tokens))


def full(folder: Path, **settings: Any) -> tuple[DiskStore, int]:
    """A disk store for three blocks, and how many bytes one takes."""
    probe = DiskStore(folder / "probe")
    probe.put(key(1), kv_block(4), behind(1000))
    return DiskStore(folder / "s", int(3.5 * probe.nbytes), **settings), probe.nbytes


def test_on_a_disk_what_saves_most_stays(tmp_path: Path) -> None:
    """By what it saves, by how often it was read, and by what it takes; what nobody priced leaves first."""
    store, _ = full(tmp_path)
    store.put(key(0), kv_block(4), behind(9000))
    store.evict_by("benefit", price_by(COSTS))
    store.put(key(1), kv_block(4), behind(4000))
    store.put(key(2), kv_block(4), behind(40))
    store.put(key(3), kv_block(4), behind(400))
    assert set(store.keys()) == {key(1), key(2), key(3)}
    store.close()
    again = DiskStore(tmp_path / "s", store.budget)  # what an entry is worth is kept with it
    again.evict_by("benefit", price_by(COSTS))
    again.put(key(4), kv_block(4), behind(400))
    assert set(again.keys()) == {key(1), key(3), key(4)}
    for _ in range(40):
        again.get(key(3))
        again.flush()
    again.put(key(5), kv_block(4), behind(400))
    assert set(again.keys()) == {key(1), key(3), key(5)}
    again.put(key(6), kv_block(4), behind(400))  # what was dear has not been read for long
    assert set(again.keys()) == {key(3), key(5), key(6)}


def test_what_is_worth_much_leaves_once_it_is_old_enough(tmp_path: Path) -> None:
    store, _ = full(tmp_path)
    store.evict_by("benefit", price_by(COSTS))
    store.put(key(0), kv_block(4), behind(4000))
    for name in range(1, 400):
        store.put(key(name), kv_block(4, name), behind(400))
    assert key(0) not in store.keys()  # noqa: SIM118


@pytest.mark.parametrize("tiers", [False, True])
def test_one_setting_of_an_engine_is_for_memory_and_disk(tmp_path: Path, tiers: bool) -> None:
    disk, _ = full(tmp_path)
    near = MemoryStore(3 * UNIT)
    store = TieredStore(near, disk) if tiers else disk
    with recording_engine(store=store, evictor="benefit"):
        for name, tokens in enumerate((4000, 40, 400, 400)):
            store.put(key(name), kv_block(4), behind(tokens))
            store.flush()
        for each in (near, disk) if tiers else (disk,):
            assert set(each.keys()) == {key(0), key(2), key(3)}
    store.close()
    for by, left in ((None, {1, 2, 3}), ("benefit", {0, 2, 3})):
        store = MemoryStore(3 * UNIT)
        with recording_engine(store=store, evictor=by):
            for name, tokens in enumerate((4000, 40, 400, 400)):
                store.put(key(name), kv_block(4), behind(tokens))
        assert set(store.keys()) == set(map(key, left))


def test_a_store_with_a_rule_of_its_own_is_not_told() -> None:
    remote = RedisStore("redis://127.0.0.1:1/0")
    tiers = TieredStore(MemoryStore(), remote)
    for store in (remote, tiers):
        with pytest.raises(InvalidInput, match="a rule of its own"):
            recording_engine(store=store, evictor="lru")
    tiers.close()


def test_a_patch_is_priced_by_the_tokens_it_corrects() -> None:
    patch, price = form(kv_block(6).slots, Budget(rank=2)), price_by(COSTS)
    assert any(isinstance(f, Factors) for f in patch.factors)
    assert price(Key("patch", "a", "b"), patch, Note()) == pytest.approx(saved(COSTS, "patch", 6))


@pytest.mark.parametrize("name", EVICTORS)
def test_pinned_entries_stay_and_the_budget_holds(name: str) -> None:
    store = MemoryStore(3 * UNIT, evictor=lambda: evictor(name))
    for i in range(3):
        store.put(key(i), kv_block(4, i))
    assert store.pin(key(0))
    for i in range(3, 20):
        assert store.put(key(i), kv_block(4, i))
        assert store.nbytes <= store.budget
    first = store.get(key(0))
    assert first is not None
    assert same_bits(first.entry, kv_block(4, 0))  # type: ignore[arg-type]


def test_a_store_of_pinned_entries_takes_nothing_in_and_loses_nothing() -> None:
    store = MemoryStore(2 * UNIT)
    for i in range(2):
        store.put(key(i), kv_block(4, i))
        store.pin(key(i))
    assert not store.put(key(2), kv_block(4))
    assert not store.put(key(0), kv_block(8))
    assert set(store.keys()) == {key(0), key(1)}
    assert store.put(key(0), kv_block(4, 5))  # another entry of a size that fits stays pinned
    assert not store.put(key(2), kv_block(4))
    store.pin(key(1), on=False)
    assert store.put(key(2), kv_block(4))
    assert set(store.keys()) == {key(0), key(2)}
    assert store.drop(key(0))
    assert not store.pin(key(0))
    assert not torch.isnan(kv_block(4).slots[0]).any()
