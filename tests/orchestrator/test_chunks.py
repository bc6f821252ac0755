"""Identity of chunks."""

from __future__ import annotations

import numpy as np
import pytest
from agentkv_orchestrator.chunks import Chunk, context_key, digest, set_key
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from xxhash import xxh3_64_hexdigest, xxh3_128_hexdigest

from tests.strategies import seeds, token_ids

names = st.lists(st.text("ab", min_size=1, max_size=3), max_size=5)


@given(seeds, st.integers(1, 50), st.data())
def test_a_digest_hangs_on_every_token(seed: int, size: int, data: st.DataObject) -> None:
    ids = token_ids(seed, size)
    other = ids.copy()
    other[data.draw(st.integers(0, size - 1))] += 1
    assert digest(ids, "model") == digest(ids.copy(), "model")
    assert digest(ids, "model") != digest(other, "model")


def test_a_digest_is_40_hex_characters_whatever_the_layout_of_the_ids() -> None:
    ids = np.arange(12)
    strided = np.repeat(ids, 2)[::2]
    assert digest(strided, "m") == digest(ids, "m")
    assert len(digest(ids, "m")) == 40
    int(digest(ids, "m"), 16)


def test_fields_of_a_digest_cannot_be_shifted_into_one_another() -> None:
    ids = np.array([1])
    assert (
        len({digest(ids, "ab", b"c"), digest(ids, "a", b"bc"), digest(ids, "abc"), digest(ids, "", b"abc")})
        == 4
    )


def colliding() -> tuple[np.ndarray, np.ndarray]:
    """Two inputs with one xxh3, 64 bits and 128.

    xxh3 multiplies the halves of (data ^ secret) and adds data besides. Where the low half is 0 so is the
    product, and only the sum is left of the high half: what one stripe adds there, the next takes off.
    """
    secret = bytes.fromhex("b8fe6c3923a44bbe7c01812cf721ad1c")  # of seed 0, lane 0 of the first two stripes
    first = np.random.default_rng(0).integers(0, 1 << 20, 40, dtype=np.int64)
    first[0] = int.from_bytes(secret[:4], "little") | 5 << 32
    first[8] = int.from_bytes(secret[8:12], "little") | 9 << 32
    second = first.copy()
    second[0] += 3 << 32
    second[8] -= 3 << 32
    return first, second


def test_contents_that_collide_under_a_fast_hash_have_ids_of_their_own() -> None:
    first, second = colliding()
    assert xxh3_128_hexdigest(first.tobytes()) == xxh3_128_hexdigest(second.tobytes())
    assert xxh3_64_hexdigest(first.tobytes()) == xxh3_64_hexdigest(second.tobytes())
    assert digest(first, "m") != digest(second, "m")


@given(names, names)
def test_context_keys_keep_order_and_set_keys_forget_it(a: list[str], b: list[str]) -> None:
    assert (context_key(a) == context_key(b)) == (a == b)
    assert (set_key(a) == set_key(b)) == (sorted(a) == sorted(b))


def test_a_chunk_spans_its_length_unless_told() -> None:
    assert Chunk(id="a", kind="doc", length=7).span == 7
    assert Chunk(id="a", kind="image", length=7, span=3).span == 3
    with pytest.raises(ValidationError):
        Chunk(id="a", kind="doc", length=0)
