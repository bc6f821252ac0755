"""Content-defined cutting: bounds, locality, and the hash against its definition."""

from __future__ import annotations

import time

import numpy as np
import pytest
from agentkv_orchestrator.chunks import digest
from agentkv_orchestrator.cut import _BLOCK, _gear, cut
from agentkv_orchestrator.errors import ChunkError
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import seeds, token_ids

texts = st.builds(token_ids, seeds, st.integers(0, 3000), st.sampled_from([1, 2, 50_000]))
"""Random text, and text of one or two words, where content gives few cuts or far too many."""


def splitmix64(x: int) -> int:
    mask = 2**64 - 1
    x = (x + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & mask
    return x ^ x >> 31


def pieces(text: np.ndarray, **options: int) -> list[tuple[int, ...]]:
    return [tuple(text[a:b].tolist()) for a, b in cut(text, **options)]


@pytest.mark.parametrize("window", [1, 2, 64])
def test_the_hash_is_gears_definition(window: int) -> None:
    text = token_ids(1, 200)
    hashes = _gear(text.copy(), window)
    for i in range(len(text)):
        expected = 0
        for k in range(min(window, i + 1)):
            expected ^= splitmix64(int(text[i - k])) >> k
        assert int(hashes[i]) == expected


def test_the_low_bits_see_the_whole_window_and_nothing_else() -> None:
    text = token_ids(2, 400)
    low = _gear(text.copy(), 64) & np.uint64(127)
    reached = set()
    for seed in range(64):  # one change reaches the last bit of the window half of the time
        other = text.copy()
        other[200] = 60_000 + seed
        reached |= set(np.flatnonzero((_gear(other, 64) & np.uint64(127)) != low).tolist())
    assert reached == set(range(200, 264))


@settings(max_examples=80, deadline=None)
@given(texts, st.lists(st.integers(-5, 3100), max_size=6))
def test_pieces_cover_the_text_within_bounds(text: np.ndarray, boundaries: list[int]) -> None:
    spans = cut(text, boundaries)
    edges = {0, len(text), *(b for b in boundaries if 0 < b < len(text))}
    stops = [b for _, b in spans]
    assert [a for a, _ in spans] == [0, *stops][: len(spans)]
    assert edges <= {0, *stops} <= set(range(len(text) + 1))
    for (a, b), before in zip(spans, [None, *spans], strict=False):
        assert b - a <= 512
        if b - a < 32:
            assert b in edges
            assert a in edges or (before is not None and b - before[0] > 512)


@settings(max_examples=60, deadline=None)
@given(texts, texts, texts)
def test_text_between_boundaries_is_cut_alone(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    whole = np.concatenate([a, b, c])
    inside = [
        (x, y) for x, y in cut(whole, [len(a), len(a) + len(b)]) if len(a) <= x and y <= len(a) + len(b)
    ]
    assert [(x - len(a), y - len(a)) for x, y in inside] == cut(b)


def test_hashing_in_blocks_changes_nothing() -> None:
    text = token_ids(3, 2 * _BLOCK + 777)
    hits = np.flatnonzero((_gear(text.copy(), 64) & np.uint64(127)) == 0) + 1
    ends = {b for _, b in cut(text, smallest=1, largest=len(text))}
    assert ends == {*hits.tolist(), len(text)}


def test_a_cut_in_front_hangs_on_nothing_behind() -> None:
    text = token_ids(4, 5000)
    for size in range(500, 5000, 97):
        # The last two pieces may differ: the end of the text cuts them.
        assert cut(text[:size])[:-2] == cut(text)[: len(cut(text[:size])) - 2]


@pytest.mark.parametrize("removed", [0, 1, 50])
@pytest.mark.parametrize("inserted", [0, 1, 13, 200])
def test_an_edit_changes_nearby_chunks_only(inserted: int, removed: int) -> None:
    changed = []
    for seed in range(40):
        text = token_ids(seed, 8000)
        at = 1000 + 37 * seed
        other = np.concatenate([text[:at], token_ids(seed + 1000, inserted), text[at + removed :]])
        before, after = pieces(text), pieces(other)
        gone = set(before) - set(after)
        changed.append(len(gone))
        # Whatever ends before the edit stays.
        ends = np.cumsum([len(p) for p in before])
        assert not gone & {p for p, end in zip(before, ends, strict=True) if end <= at}
    assert np.mean(changed) < 4
    assert max(changed) < 16  # of some 50


def test_a_few_words_repeated_are_cut_at_the_largest_size() -> None:
    assert {b - a for a, b in cut(np.zeros(5120, dtype=np.int64))} in ({512}, {32})


@pytest.mark.parametrize(
    ("size", "sizes"), [(0, []), (1, [1]), (31, [31]), (32, [32]), (512, [512]), (513, [512, 1])]
)
def test_small_and_large_texts(size: int, sizes: list[int]) -> None:
    assert [b - a for a, b in cut(token_ids(0, size), bits=63)] == sizes  # 63 zero bits do not happen


@pytest.mark.parametrize(
    "options", [{"window": 63}, {"window": 128}, {"smallest": 0}, {"smallest": 9, "largest": 8}]
)
def test_impossible_options_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ChunkError, match="keep the default"):
        cut([1, 2, 3], **options)


def test_cutting_and_digesting_take_a_time_linear_in_the_tokens() -> None:
    """How long it takes is a figure of the benchmark; a machine under load says nothing about it here."""
    text = token_ids(6, 1_000_000)

    def seconds(count: int) -> float:
        start = time.process_time()
        for a, b in cut(text[:count]):
            digest(text[a:b], "m")
        return time.process_time() - start

    short, long = (min(seconds(count) for _ in range(5)) for count in (100_000, 1_000_000))
    assert long < 20 * short
