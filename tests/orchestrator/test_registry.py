"""The registry: identity of content, matching of prompts, and what crafted collisions do to it (nothing)."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from agentkv_orchestrator.anchors import ANCHOR
from agentkv_orchestrator.cut import cut
from agentkv_orchestrator.errors import ChunkError
from agentkv_orchestrator.registry import Registry
from agentkv_orchestrator.rolling import Rolling
from agentkv_orchestrator.spans import Span, tokens_by
from agentkv_orchestrator.tokens import BLOCK
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import seeds, token_ids

Text = np.ndarray


def knowing(*texts: Text, **options: object) -> Registry:
    registry = Registry("m", **options)  # type: ignore[arg-type]
    for text in texts:
        registry.admit(text, "doc")
    return registry


def says_the_truth(registry: Registry, text: Text, spans: list[Span]) -> None:
    """Spans cover the text in order, and every hit holds its very tokens."""
    assert [s.start for s in spans] == [0, *(s.stop for s in spans)][: len(spans)]
    assert not spans or spans[-1].stop == len(text)
    for s in spans:
        if s.found == "new":
            assert not s.chunk
            continue
        known = registry.ids(s.chunk)[s.offset :][: s.stop - s.start]
        assert np.array_equal(known, text[s.start : s.stop])
        if s.found != "part":
            assert registry.length(s.chunk) == s.stop - s.start


def test_each_content_is_held_once() -> None:
    registry = Registry("m")
    first = registry.register([1, 2, 3], "doc")
    assert registry.register([1, 2, 3], "doc") == first
    assert registry.register([1, 2, 3], "tool").id == first.id
    assert len(registry) == 1
    assert registry.find([1, 2, 3]) == first.id
    assert registry.find([1, 2]) is None
    others = {registry.register([1, 2, 3], "doc", b"pixels").id, Registry("n").register([1, 2, 3], "d").id}
    assert len({first.id} | others) == 3
    assert registry.modality(registry.register([1, 2, 3], "doc", b"pixels").id) == b"pixels"


def test_texts_registered_at_once_are_found_as_those_registered_one_by_one() -> None:
    texts = [token_ids(seed, 40 * seed) for seed in range(1, 12)]
    texts.append(texts[3])
    one_by_one, at_once = Registry("m", secret=7), Registry("m", secret=7)
    for text in texts:
        one_by_one.register(text, "doc")
    at_once.register_all(iter(texts))
    at_once.register_all([])
    assert len(at_once) == len(one_by_one) == 11
    prompt = np.concatenate([text[len(text) // 3 :] for text in texts])
    assert at_once.match(prompt) == one_by_one.match(prompt)
    assert tokens_by(at_once.match(prompt))["part"] > 1000
    says_the_truth(at_once, prompt, at_once.match(prompt))


def test_registered_ids_cannot_be_changed_from_outside() -> None:
    registry = Registry("m")
    buffer = np.array([1, 2, 3])
    made = registry.register(buffer, "doc")
    buffer[0] = 9
    assert registry.ids(made.id).tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="read-only"):
        registry.ids(made.id)[0] = 9


def test_a_digest_that_is_no_longer_safe_is_noticed() -> None:
    registry = Registry("m", digest=lambda ids, fingerprint, modality: "0" * 40)
    made = registry.register([1, 2], "doc")
    assert registry.register([1, 2], "doc") == made
    with pytest.raises(ChunkError, match="two contents"):
        registry.register([1, 3], "doc")
    assert registry.find([1, 3]) is None
    assert registry.ids(made.id).tolist() == [1, 2]


def test_errors_say_what_to_do() -> None:
    registry = Registry("m")
    with pytest.raises(ChunkError, match="no tokens"):
        registry.register([], "doc")
    for bad in ([-1], [2**31], np.zeros(BLOCK + 1, dtype=np.int64)):
        with pytest.raises(ChunkError, match="cut the text first"):
            registry.register(bad, "doc")
    with pytest.raises(ChunkError, match="register its tokens first") as raised:
        registry.ids("nobody")
    assert (raised.value.got, raised.value.expected) == ("chunk nobody", "a registered chunk")
    assert not registry.knows("nobody")
    assert not registry.drop("nobody")
    assert len(registry) == 0
    assert registry.match([]) == []


@settings(max_examples=60, deadline=None)
@given(seeds, st.sampled_from([2, 60, 50_000]), st.data())
def test_every_hit_holds_the_tokens_it_is_said_to_hold(seed: int, words: int, data: st.DataObject) -> None:
    """Texts made of pieces of one another, cut and matched with any boundaries."""
    draw = np.random.default_rng(seed)
    source = token_ids(seed, 1500, words)
    registry = knowing(source)
    for _ in range(3):
        pieces = [token_ids(int(draw.integers(1e9)), int(draw.integers(1, 90)), words)]
        for _ in range(data.draw(st.integers(0, 4))):
            a, b = sorted(draw.integers(0, len(source), 2).tolist())
            pieces += [source[a:b], token_ids(int(draw.integers(1e9)), int(draw.integers(0, 9)), words)]
        text = np.concatenate(pieces)
        edges = data.draw(st.lists(st.integers(-5, len(text) + 5), max_size=4))
        sink = data.draw(st.sampled_from([None, 0, 32]))
        spans = registry.match(text, edges, sink)
        says_the_truth(registry, text, spans)
        assert all(not s.start < edge < s.stop for s in spans for edge in edges)
        assert all(s.found in ("new", "prefix") or s.start >= (sink or 0) for s in spans)
        admitted = registry.admit(text, "doc", edges, sink)
        assert [c.id for c, _ in admitted] == [registry.find(text[s.start : s.stop]) for _, s in admitted]
        again = registry.match(text, edges, sink)
        if sink is not None:
            assert {s.found for s in again} == {"prefix"}
            assert [(s.start, s.stop) for s in again] == [(s.start, s.stop) for _, s in admitted]


def test_a_prompt_is_a_prefix_as_it_was_cut_last() -> None:
    """Its first two tokens ended one chunk before, and end another one now."""
    registry, body = knowing(token_ids(0, 1500, 2)), token_ids(1, 60)
    registry.admit(body, "doc", [2], 0)
    registry.admit(body[:25], "doc", [1, 2], 0)
    assert [(s.start, s.stop, s.found) for s in registry.match(body[:25], [1, 2], 0)] == [
        (0, 1, "prefix"),
        (1, 2, "prefix"),
        (2, 25, "prefix"),
    ]
    assert {s.found for s in registry.match(body, [1, 2], 0)} == {"prefix"}


def test_a_prompt_behind_another_header_is_known_but_for_the_header() -> None:
    body = token_ids(1, 6000)
    registry = Registry("m")
    registry.admit(np.concatenate([token_ids(2, 40), body]), "doc", [40])
    for size in (1, 31, 57, 300):
        text = np.concatenate([token_ids(size, size), body])
        assert tokens_by(registry.match(text, [size]))["new"] == size
        without = tokens_by(registry.match(text))
        assert without["new"] <= size + 64  # the cuts near the header may differ; anchors find the rest
    assert tokens_by(registry.match(token_ids(3, 6000)))["new"] == 6000


@pytest.mark.parametrize("at", [5, 40, 100, 150, 400])
def test_an_edit_inside_a_chunk_leaves_what_stands_around_it(at: int) -> None:
    text = token_ids(4, 500)
    registry = Registry("m")
    whole = registry.register(text, "doc").id
    other = text.copy()
    other[at] += 1
    parts = [s for s in registry.match(other) if s.found == "part"]
    assert all((s.chunk, s.offset) == (whole, s.start) for s in parts)
    kept = sum(s.stop - s.start for s in parts)
    assert 499 - ANCHOR < kept <= 499


def test_the_longest_prefix_comes_first_and_keeps_its_cuts() -> None:
    """A text that was cut by boundaries once is cut there again, where no boundary stands in the way."""
    text = token_ids(5, 3000)
    registry = Registry("m")
    registry.admit(text[:2000], "doc", [77, 300, 1111], sink=0)
    spans = registry.match(text, sink=0)
    prefix = [s for s in spans if s.found == "prefix"]
    assert prefix[-1].stop == 2000
    assert {77, 300, 1111} <= {s.stop for s in prefix}
    assert [s.found for s in spans[len(prefix) :]] == ["new"]
    assert all(s.stop <= 100 or s.start >= 100 for s in registry.match(text, [100], sink=0))
    assert "prefix" not in tokens_by(registry.match(text[1:], sink=0))
    assert "prefix" not in tokens_by(registry.match(text))  # inside of a sequence there is none


def test_the_sink_is_not_reused_out_of_its_place() -> None:
    text = token_ids(6, 900)
    registry = Registry("m")
    registry.admit(np.concatenate([token_ids(7, 500), text]), "doc", [500])
    spans = registry.match(text, sink=32)
    assert spans[0] == Span(0, 32)
    assert tokens_by(spans)["new"] == 32
    assert tokens_by(registry.match(text))["new"] == 0
    registry.admit(text, "doc", sink=32)
    assert tokens_by(registry.match(text, sink=32)) == {"prefix": 900}


def thue_morse(order: int, a: int, b: int) -> Text:
    signs = np.zeros(1, dtype=np.int64)
    for _ in range(order):
        signs = np.concatenate([signs, 1 - signs])
    return np.where(signs == 0, a, b)


@given(st.integers(0, 2**128 - 1))
@settings(max_examples=20, deadline=None)
def test_real_colliding_prompts_are_told_apart(secret: int) -> None:
    """Thue-Morse words and their complements have one hash modulo 2^64, whatever the secrets are."""
    one, other = thue_morse(11, 3, 8), thue_morse(11, 8, 3)
    rolling = Rolling(secret)
    assert rolling.sums(one)[-1] == rolling.sums(other)[-1]
    assert not np.array_equal(one, other)
    registry = Registry("m", secret=secret)
    for text in (one, other):
        registry.admit(text, "doc")
    for text in (one, other, np.concatenate([one, other]), np.concatenate([token_ids(1, 9), other])):
        says_the_truth(registry, text, registry.match(text))


def test_rolling_hashes_do_not_hang_on_the_place() -> None:
    text, rolling = token_ids(8, 400), Rolling()
    moved = np.concatenate([token_ids(9, 133), text])
    here, there = rolling.sums(text), rolling.sums(moved)
    starts = np.arange(400 - ANCHOR)
    assert np.array_equal(rolling.runs(here, starts, ANCHOR), rolling.runs(there, starts + 133, ANCHOR))
    assert len(np.unique(rolling.runs(here, starts, ANCHOR))) == starts.size
    assert not np.array_equal(Rolling().sums(text), here)


def test_what_is_dropped_is_not_found_and_comes_back_under_its_id() -> None:
    text = token_ids(10, 2000)
    registry = knowing(text)
    ids = [s.chunk for s in registry.match(text)]
    assert all(registry.drop(chunk) for chunk in ids)
    assert len(registry) == 0
    assert tokens_by(registry.match(text)) == {"new": 2000}
    assert tokens_by(registry.match(text[200:])) == {"new": 1800}
    assert [c.id for c, _ in registry.admit(text, "doc")] == ids
    says_the_truth(registry, text, registry.match(text))


def test_the_registry_is_bounded_by_what_is_kept() -> None:
    """What nobody keeps is forgotten by the second call after it was last asked for; bytes follow."""
    registry = Registry("m")
    kept = registry.register(token_ids(11, 300), "doc").id
    sizes = []
    for turn in range(30):
        fresh = [c.id for c, _ in registry.admit(token_ids(100 + turn, 30_000), "doc")]
        registry.retain([kept])
        assert all(map(registry.knows, fresh))  # an edit may be about to hold them
        sizes.append(sum(registry.sizes))
    assert max(sizes[10:]) <= 1.1 * max(sizes[:10])
    registry.retain([kept])
    assert len(registry) == 1
    assert registry.ids(kept).tolist() == token_ids(11, 300).tolist()
    assert registry.find(token_ids(11, 300)) == kept


def test_sizes_are_those_of_the_ids_the_tokens_and_the_rest() -> None:
    registry = knowing(token_ids(12, 400_000))
    count = len(registry)
    assert registry.sizes.keys == count * len(registry.match(token_ids(12, 400_000))[0].chunk) // 2
    assert registry.sizes.tokens == 4 * 400_000
    assert 0 < registry.sizes.overhead < 100 * count + BLOCK * 4  # the last block is not full


def test_threads_share_a_registry() -> None:
    texts = [token_ids(i, 4000) for i in range(4)]
    registry = Registry("m")

    def show() -> None:
        for text in texts:
            registry.admit(text, "doc")

    threads = [threading.Thread(target=show) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(registry) == sum(len(cut(text)) for text in texts)
    for text in texts:
        says_the_truth(registry, text, registry.match(text))
