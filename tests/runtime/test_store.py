"""The store in memory keeps what every store promises."""

from __future__ import annotations

import pytest
import torch
from agentkv_orchestrator.residency import Context

from agentkv.errors import InvalidInput
from agentkv.patches import Budget, Patch, form
from agentkv.store.base import Key, Note, Store, residency
from agentkv.store.disk import DiskStore
from agentkv.store.memory import MemoryStore
from agentkv.testing import StoreConformance, kv_block


class TestMemoryStore(StoreConformance):
    def make(self, budget: int) -> Store:
        return MemoryStore(budget)


class TestDiskStore(StoreConformance):
    @pytest.fixture(autouse=True)
    def _somewhere(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.folders = tmp_path_factory

    def make(self, budget: int) -> Store:
        return DiskStore(self.folders.mktemp("store") / "s", budget)


def test_a_budget_that_holds_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least 1 byte"):
        MemoryStore(0)


def test_a_patch_comes_back_and_counts_its_bytes() -> None:
    patch = form(kv_block(6).slots, Budget(rank=2))
    store = MemoryStore(1 << 20)
    store.put(Key("patch", "a", "b"), patch)
    stored = store.get(Key("patch", "a", "b"))
    assert stored is not None
    found = stored.entry
    assert isinstance(found, Patch)
    assert store.nbytes == patch.nbytes > 0
    for got, want in zip(found.factors, patch.factors, strict=True):
        assert got is not None
        assert want is not None
        assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))


def test_residency_tells_kinds_and_contexts_of_every_chunk() -> None:
    store = MemoryStore(1 << 20)
    for key in (
        Key("canonical", "a"),
        Key("conditioned", "a", "c1"),
        Key("conditioned", "a", "c2"),
        Key("patch", "a", "c1"),
        Key("orbit", "b", "s1"),
        Key("removal", "b", "c1>c2"),
    ):
        note = Note(0.25, Context(chunks=("x",), tokens=3)) if key == Key("patch", "a", "c1") else Note()
        store.put(key, kv_block(1), note)
    store.put(Key("canonical", "theirs"), kv_block(1))
    held = residency(store, {"a": 5, "b": 7, "c": 9})
    assert held.of("a").hearsay == {"c1": 0.25}
    assert set(held.known()) == {"a", "b"}  # nobody asked for "theirs"
    assert held.context("c1") == Context(chunks=("x",), tokens=3)
    assert held.context("c2") is None
    a, b = held.of("a"), held.of("b")
    assert (a.tokens, b.tokens) == (5, 7)
    assert (a.canonical, a.conditioned, a.patches) == (True, {"c1", "c2"}, {"c1"})
    assert (b.canonical, b.orbits, b.removals) == (False, {"s1"}, {"c1>c2"})
    assert held.of("unknown").empty
