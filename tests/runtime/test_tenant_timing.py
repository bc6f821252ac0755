"""How long a look-up takes must not tell one tenant what another one has stored."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from agentkv.store.base import Key, Store
from agentkv.store.disk import DiskStore
from agentkv.store.memory import MemoryStore
from agentkv.store.redis import RedisStore
from agentkv.store.tenancy import TenantStore
from agentkv.testing import kv_block
from tests.redis_server import redis_server

SAMPLES = 400
DEVIATIONS = 4
"""An area of 1/2 is missed by more than this once in 16,000 runs."""


def area(one: list[float], other: list[float]) -> float:
    """Of the ROC curve (Mann and Whitney): how often a time of `one` is the longer, ties counted by half."""
    _, inverse, counts = np.unique([*one, *other], return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2
    ranks = middle[inverse][: len(one)]
    return float((ranks.sum() - len(one) * (len(one) + 1) / 2) / (len(one) * len(other)))


def spread(count: int) -> float:
    """Standard deviation of the area where both samples, `count` each, are of one distribution."""
    return float(np.sqrt((2 * count + 1) / (12 * count**2)))


def times(look: Callable[[str], object], one: str, other: str) -> tuple[list[float], list[float]]:
    """Nanoseconds of looking up the names of two tenants, in random order.

    Every name is a string made for its look-up: one that was used before has its hash with it.
    """
    laps: dict[str, list[float]] = {one: [], other: []}
    order = [(owner, number) for owner in laps for number in range(SAMPLES)]
    for number in range(40):
        look(f"warm{number}")
    gc.disable()
    try:
        for owner, number in random.Random(0).sample(order, len(order)):
            name = f"{owner}{number}"
            start = time.perf_counter_ns()
            look(name)
            laps[owner].append(time.perf_counter_ns() - start)
    finally:
        gc.enable()
    return laps[one], laps[other]


@pytest.fixture(params=["host", "disk", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "redis":
        with redis_server() as server:
            yield RedisStore(server.url, 1 << 28, patience=20.0)
    else:
        yield MemoryStore(1 << 28) if request.param == "host" else DiskStore(tmp_path, 1 << 28)


def test_the_time_of_a_look_up_does_not_tell_what_others_have(store: Store) -> None:
    ann, bob = TenantStore(store, "ann"), TenantStore(store, "bob")
    for name, tenant in (("ann", ann), ("bob", bob)):
        for number in range(SAMPLES):
            tenant.put(Key("canonical", f"{name}{number}"), kv_block(24))
    store.flush()

    def get(name: str) -> object:
        return bob.get(Key("canonical", name))

    def held(name: str) -> object:
        return bob.held([name])

    for look in (get, held):
        assert abs(area(*times(look, "ann", "eve")) - 0.5) < DEVIATIONS * spread(SAMPLES)
        assert area(*times(look, "bob", "eve")) > 0.5 + DEVIATIONS * spread(SAMPLES)  # one's own are seen


def test_the_area_is_that_of_all_pairs() -> None:
    draw = random.Random(1)
    one = [float(draw.randrange(9)) for _ in range(40)]
    other = [float(draw.randrange(12)) for _ in range(30)]
    pairs = [(a > b) + (a == b) / 2 for a in one for b in other]
    assert area(one, other) == pytest.approx(sum(pairs) / len(pairs))
