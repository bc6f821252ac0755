"""Tenants of one store: what one stored the other cannot read, hit, count or push out."""

from __future__ import annotations

import random

import pytest

from agentkv.errors import InvalidInput
from agentkv.store.base import Key
from agentkv.store.key import scope_of
from agentkv.store.memory import MemoryStore
from agentkv.store.share import Shares
from agentkv.store.tenancy import TenantStore, of_tenant
from agentkv.testing import kv_block, recording_engine
from tests.runtime.cases import words

UNIT = kv_block(4).nbytes
CANONICAL, CONDITIONED = Key("canonical", "a"), Key("conditioned", "a", "c")


def pair(budget: int = 100 * UNIT, **settings: bool) -> tuple[MemoryStore, TenantStore, TenantStore]:
    store = MemoryStore(budget)
    return store, TenantStore(store, "ann", **settings), TenantStore(store, "bob", **settings)


def test_what_one_stored_the_other_does_not_find() -> None:
    store, ann, bob = pair()
    for key in (CANONICAL, CONDITIONED):
        ann.put(key, kv_block(4))
    for other in (bob, store):
        assert [other.get(key) for key in (CANONICAL, CONDITIONED)] == [None, None]
        assert other.held(["a"]) == {}
    assert (bob.keys(), bob.nbytes, bob.stats().entries) == ((), 0, 0)
    assert not bob.drop(CONDITIONED)
    assert set(ann.keys()) == set(ann.held(["a"])) == {CANONICAL, CONDITIONED}
    assert (ann.nbytes, ann.stats().tenants) == (2 * UNIT, {})


def test_canonicals_are_shared_by_those_who_said_so() -> None:
    store, ann, bob = pair(share_canonicals=True)
    eve, plain = TenantStore(store, "eve"), store
    for key in (CANONICAL, CONDITIONED):
        ann.put(key, kv_block(4))
    assert bob.get(CANONICAL) is not None
    assert bob.get(CONDITIONED) is None
    assert set(bob.held(["a"])) == {CANONICAL}
    assert eve.get(CANONICAL) is plain.get(CANONICAL) is None


def test_a_tenant_cannot_take_the_name_of_another_scope() -> None:
    names = ["", "shared", "ann", scope_of("ann"), "t:ann", "ann\x00", "shared:"]
    assert len({scope_of(name) for name in names} | {"shared"}) == len(names) + 1
    assert of_tenant(store := MemoryStore(), "", share_canonicals=False) is store


def test_who_fills_the_store_pushes_itself_out() -> None:
    store, ann, bob = pair(10 * UNIT)
    for name in range(5):
        ann.put(Key("conditioned", f"a{name}"), kv_block(4))
    draw = random.Random(0)
    for name in range(200):
        bob.put(Key("conditioned", f"b{name}"), kv_block(draw.randrange(1, 9)))
        assert store.nbytes <= store.budget
    assert len(ann.keys()) == 5
    assert bob.nbytes > 3 * UNIT


def test_a_quota_holds_though_the_store_is_empty() -> None:
    store = MemoryStore(10 * UNIT, tenant_bytes=3 * UNIT)
    ann = TenantStore(store, "ann")
    for name in range(8):
        ann.put(Key("conditioned", f"a{name}"), kv_block(4))
        assert ann.nbytes <= 3 * UNIT
    assert not ann.put(CANONICAL, kv_block(16))
    assert len(ann.keys()) == 3


@pytest.mark.parametrize("budgets", [(0, None), (1, 0)])
def test_a_budget_of_nothing_is_refused(budgets: tuple[int, int | None]) -> None:
    with pytest.raises(InvalidInput, match="at least 1 byte"):
        Shares(*budgets)


def test_engines_of_two_tenants_share_a_store_and_nothing_in_it() -> None:
    store = MemoryStore()
    counts = []
    for tenant in ("ann", "bob"):
        with recording_engine(store=store, tenant=tenant) as engine:
            window = engine.window()
            window.append(words(30, 1))
            note = window.append(words(40, 2))
            window.commit()
            window.evict(note)
            window.commit()
            window.recall(note)
            window.commit()
            counts.append((window.usage.recomputed, engine.store.nbytes))
    assert counts[0] == counts[1]
    assert len({key.tenant for key in store.keys()}) == 2  # noqa: SIM118
