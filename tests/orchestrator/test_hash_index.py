"""The hash index against a dictionary of lists, and its bytes."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from agentkv_orchestrator.hash_index import HashIndex
from hypothesis import given, settings
from hypothesis import strategies as st

keys = st.integers(0, 5).map(lambda low: low << 32 | 7 * low) | st.integers(0, 2**64 - 1)
"""Few enough that they meet; some share their tag with no other."""
steps = st.lists(st.tuples(st.sampled_from(["add", "many", "remove"]), keys, st.integers(0, 9)), max_size=60)


@settings(max_examples=150, deadline=None)
@given(steps)
def test_it_holds_what_a_dictionary_of_sets_would(script: list[tuple[str, int, int]]) -> None:
    index, truth = HashIndex(), defaultdict[int, list[int]](list)
    for step, key, value in script:
        if step == "remove":
            assert index.remove(key, value) == (value in truth[key >> 32])
            if value in truth[key >> 32]:
                truth[key >> 32].remove(value)
        elif value not in truth[key >> 32]:
            if step == "add":
                index.add(key, value)
            else:
                index.add_many(np.array([key], np.uint64), np.array([value], np.int32))
            truth[key >> 32].append(value)
        for other in {key, *(k << 32 for k in truth)}:
            assert sorted(index.find(other)) == sorted(truth[other >> 32])
            first = index.find_many(np.array([other], np.uint64))[0]
            assert first == next(index.find(other), -1)
    assert len(index) == sum(map(len, truth.values()))


def test_many_at_once_are_all_found_and_strangers_are_not() -> None:
    drawn = np.random.default_rng(0).integers(0, 2**64, 20_000, dtype=np.uint64)
    mine, others = drawn[:10_000], drawn[10_000:]
    index = HashIndex()
    index.add_many(mine, np.arange(10_000, dtype=np.int32))
    assert np.array_equal(index.find_many(mine), np.arange(10_000))
    assert (index.find_many(others) >= 0).sum() <= 2  # a tag has 32 bits
    assert 12 <= index.nbytes / 10_000 <= 16.1


def test_removed_entries_leave_no_bytes_behind_in_the_long_run() -> None:
    index = HashIndex()
    for turn in range(300):
        turn_keys = np.random.default_rng(turn).integers(0, 2**64, 100, dtype=np.uint64)
        index.add_many(turn_keys, np.arange(100, dtype=np.int32))
        for key, value in zip(turn_keys.tolist(), range(100), strict=True):
            assert index.remove(key, value)
    assert len(index) == 0
    assert index.nbytes < 16 * 1000
