"""A store that asks an evictor: pins, prices and the budget."""

from __future__ import annotations

import pytest
import torch
from agentkv_kernels.types import Factors
from agentkv_orchestrator.eviction import EVICTORS, Benefit, evictor, saved
from agentkv_orchestrator.residency import Context

from agentkv.patches import Budget, form
from agentkv.store.base import Key, Note, Store
from agentkv.store.memory import MemoryStore
from agentkv.store.price import price_by
from agentkv.testing import StoreConformance, kv_block, same_bits
from tests.strategies import COSTS

UNIT = kv_block(4).nbytes


def key(name: int) -> Key:
    return Key("conditioned", f"chunk{name}", "context")


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
