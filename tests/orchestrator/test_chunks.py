"""Identity of chunks."""

from __future__ import annotations

import numpy as np
import pytest
from agentkv_orchestrator.chunks import Chunk, ChunkTable, context_key, digest, set_key
from agentkv_orchestrator.errors import ChunkError
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.strategies import seeds, token_ids

names = st.lists(st.text("ab", min_size=1, max_size=3), max_size=5)


@given(seeds, st.integers(1, 50), st.data())
def test_a_digest_hangs_on_every_token(seed: int, size: int, data: st.DataObject) -> None:
    ids = token_ids(seed, size)
    other = ids.copy()
    other[data.draw(st.integers(0, size - 1))] += 1
    assert digest(ids, "model") == digest(ids.copy(), "model")
    assert digest(ids, "model") != digest(other, "model")


def test_a_digest_is_32_hex_characters_whatever_the_layout_of_the_ids() -> None:
    ids = np.arange(12)
    strided = np.repeat(ids, 2)[::2]
    assert digest(strided, "m") == digest(ids, "m")
    assert len(digest(ids, "m")) == 32
    int(digest(ids, "m"), 16)


def test_fields_of_a_digest_cannot_be_shifted_into_one_another() -> None:
    ids = np.array([1])
    assert (
        len({digest(ids, "ab", b"c"), digest(ids, "a", b"bc"), digest(ids, "abc"), digest(ids, "", b"abc")})
        == 4
    )


@given(names, names)
def test_context_keys_keep_order_and_set_keys_forget_it(a: list[str], b: list[str]) -> None:
    assert (context_key(a) == context_key(b)) == (a == b)
    assert (set_key(a) == set_key(b)) == (sorted(a) == sorted(b))


def test_a_chunk_spans_its_length_unless_told() -> None:
    assert Chunk(id="a", kind="doc", length=7).span == 7
    assert Chunk(id="a", kind="image", length=7, span=3).span == 3
    with pytest.raises(ValidationError):
        Chunk(id="a", kind="doc", length=0)


def test_a_table_holds_each_content_once() -> None:
    table = ChunkTable()
    first = table.register([1, 2, 3], "doc", "m")
    assert table.register([1, 2, 3], "doc", "m") == first
    assert table.register([1, 2, 3], "tool", "m").id == first.id
    assert len(table) == 1
    assert (
        len({table.register(*args).id for args in (([1], "d", "m"), ([1], "d", "n"), ([1], "d", "m", b"x"))})
        == 3
    )


def test_registered_ids_cannot_be_changed_from_outside() -> None:
    table = ChunkTable()
    buffer = np.array([1, 2, 3])
    made = table.register(buffer, "doc", "m")
    buffer[0] = 9
    assert table.ids(made.id).tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="read-only"):
        table.ids(made.id)[0] = 9


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), min_size=1, max_size=12))
def test_contents_under_one_digest_stay_apart(contents: list[list[int]]) -> None:
    """Every digest collides here, as a crafted pair's would."""
    table = ChunkTable(digest=lambda ids, fingerprint, modality: "0" * 32)
    made = [(content, table.register(content, "doc", "m").id) for content in contents]
    for content, chunk_id in made:
        assert table.ids(chunk_id).tolist() == content
        assert table.knows(chunk_id)
        assert table.register(content, "doc", "m").id == chunk_id
    assert len(table) == len({tuple(content) for content in contents}) == len({i for _, i in made})


def test_errors_say_what_to_do() -> None:
    table = ChunkTable()
    with pytest.raises(ChunkError, match="no tokens"):
        table.register([], "doc", "m")
    with pytest.raises(ChunkError, match="register its tokens first") as raised:
        table.ids("nobody")
    assert (raised.value.got, raised.value.expected) == ("chunk nobody", "a registered chunk")
    assert not table.knows("nobody")
