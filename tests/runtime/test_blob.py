"""What a blob reader does with whatever it is given: the entry, or Unreadable."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from agentkv_orchestrator.chunks import digest
from agentkv_orchestrator.residency import Context
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from xxhash import xxh3_128

from agentkv.kv import KVBlock
from agentkv.patches import Budget, Patch, form
from agentkv.store import blob, serde
from agentkv.store.base import Key, Note, Origin, Stored
from agentkv.store.blob import Bytes, Unreadable
from agentkv.testing import kv_block, same_bits

IDS = np.arange(5, dtype=np.int64)
ORIGIN = Origin(IDS, b"", "f" * 40)
KEY = Key("conditioned", digest(IDS, ORIGIN.fingerprint), "context")
STORED = Stored(kv_block(5), Note(0.25, Context(chunks=("x", "y"), tokens=9)), ORIGIN)
WHOLE = b"".join(serde.dump(KEY, STORED))


def read(data: bytes, key: Key = KEY) -> Stored:
    return serde.load(Bytes(data), key)


PAYLOAD = WHOLE[8 + int.from_bytes(WHOLE[:8], "little") :]


def resealed(header: dict[str, Any], payload: bytes = PAYLOAD) -> bytes:
    """A blob with this header, its checksum made right again, as an attacker would."""
    header["__metadata__"] = {"checksum": "0" * 32, **header["__metadata__"]}
    header["__metadata__"]["checksum"] = "0" * 32
    text = json.dumps(header, separators=(",", ":")).encode()
    length = len(text).to_bytes(8, "little")
    mark = b'{"__metadata__":{"checksum":"'
    good = xxh3_128(length + text + payload).hexdigest().encode()
    return length + text.replace(mark + b"0" * 32, mark + good, 1) + payload


def header() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(WHOLE[8 : 8 + int.from_bytes(WHOLE[:8], "little")])
    return found


def told(**changes: Any) -> dict[str, Any]:
    """The header with other things in its record."""
    found = header()
    record = json.loads(found["__metadata__"]["agentkv"]) | changes
    found["__metadata__"]["agentkv"] = json.dumps(record)
    return found


def test_everything_comes_back() -> None:
    found = read(WHOLE)
    assert isinstance(found.entry, KVBlock)
    assert same_bits(found.entry, kv_block(5))
    assert (found.note, ORIGIN.same(found.origin)) == (STORED.note, True)
    assert same_bits(read(resealed(header())).entry, kv_block(5))  # type: ignore[arg-type]


def test_safetensors_reads_it_as_well(tmp_path: Path) -> None:
    path = tmp_path / "blob.safetensors"
    path.write_bytes(WHOLE)
    with safe_open(path, framework="pt") as file:
        assert torch.equal(file.get_tensor("slot0"), kv_block(5).slots[0])
        assert set(file.metadata()) == {"checksum", "agentkv"}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_dtype_comes_back(dtype: torch.dtype) -> None:
    block = KVBlock(tuple(s.to(dtype) for s in kv_block(5).slots), torch.arange(5))
    found = read(b"".join(serde.dump(KEY, Stored(block))))
    assert isinstance(found.entry, KVBlock)
    assert same_bits(found.entry, block)
    assert found.entry.slots[0].dtype == dtype


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 8 * len(WHOLE) - 1))
def test_a_flipped_bit_is_noticed_wherever_it_is(bit: int) -> None:
    data = bytearray(WHOLE)
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Unreadable) as caught:
        read(bytes(data))
    assert caught.value.reason in ("torn", "checksum", "version", "foreign")
    with pytest.raises(Unreadable):
        blob.verify(Bytes(bytes(data)))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(WHOLE) - 1), st.binary(max_size=64))
def test_a_file_cut_short_or_run_on_is_torn(length: int, tail: bytes) -> None:
    with pytest.raises(Unreadable):
        read(WHOLE[:length] + tail if WHOLE[:length] + tail != WHOLE else b"")
    with pytest.raises(Unreadable):
        read(WHOLE + tail + b"x")


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400), st.booleans())
def test_anything_else_is_refused(data: bytes, framed: bool) -> None:
    with pytest.raises(Unreadable):
        read(len(data).to_bytes(8, "little") + data if framed else data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)
FIELDS = list(json.loads(header()["__metadata__"]["agentkv"]))
PARTS = [name for name in header() if name != "__metadata__"]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([*FIELDS, "packed", "more"]), json_values)
def test_a_record_with_anything_in_it_is_read_or_refused(name: str, value: Any) -> None:
    """With the right checksum: readers must not rely on it for their own safety."""
    try:
        found = read(resealed(told(**{name: value})))
    except Unreadable:
        return
    assert isinstance(found.entry, KVBlock)
    assert same_bits(found.entry, kv_block(5))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(PARTS), st.sampled_from(["dtype", "shape", "data_offsets"]), json_values)
def test_a_tensor_with_anything_said_of_it_is_read_or_refused(name: str, what: str, value: Any) -> None:
    changed = header()
    changed[name][what] = value
    try:
        found = read(resealed(changed))
    except Unreadable:
        return
    assert isinstance(found.entry, KVBlock)


@pytest.mark.parametrize("shape", [[1 << 62], [-1, -4], [2, 1 << 40], [10**30], [2, 5, 3, 4, 10**9]])
def test_absurd_sizes_allocate_nothing(shape: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    changed = header()
    changed["slot0"]["shape"] = shape
    monkeypatch.setattr(serde.torch, "empty", lambda *a, **k: pytest.fail("memory for a size not checked"))
    with pytest.raises(Unreadable, match="torn"):
        read(resealed(changed))


@pytest.mark.parametrize("length", [0, 7, 1 << 20, 1 << 40, 1 << 63, (1 << 64) - 1])
def test_an_absurd_header_allocates_nothing(length: int) -> None:
    class Counting(Bytes):
        def fill(self, at: int, buffers: Any) -> None:
            assert sum(len(b) for b in buffers) <= len(WHOLE)
            super().fill(at, buffers)

    with pytest.raises(Unreadable, match="torn"):
        serde.load(Counting(length.to_bytes(8, "little") + WHOLE[8:]), KEY)


@pytest.mark.parametrize(
    ("reason", "data"),
    [
        ("version", resealed(told(format=2))),
        ("foreign", resealed(told(tenant="other"))),
        ("foreign", resealed(told(fingerprint="e" * 40))),
        ("foreign", resealed(told(modality="00"))),
        ("checksum", WHOLE[:-1] + bytes([WHOLE[-1] ^ 1])),
        ("torn", WHOLE[:-1]),
        ("torn", b""),
    ],
)
def test_the_reason_is_told(reason: str, data: bytes) -> None:
    with pytest.raises(Unreadable) as caught:
        read(data)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    "key", [KEY._replace(kind="canonical"), KEY._replace(chunk="0" * 40), KEY._replace(tenant="t")]
)
def test_an_entry_of_another_key_is_foreign(key: Key) -> None:
    with pytest.raises(Unreadable, match="foreign"):
        read(WHOLE, key)


@pytest.mark.parametrize("offsets", [[0, 9, 2], [0, 1, 9], [1, 2, 2], [0, 2, 1]])
def test_factors_that_do_not_go_together_are_refused(offsets: list[int]) -> None:
    """Kernels trust the offsets: an entry that a checksum vouches for must not reach past its tensors."""
    patch = form(kv_block(6).slots, Budget(rank=1))
    assert patch.factors[0] is not None
    bent = patch.factors[0]._replace(offsets=torch.tensor(offsets, dtype=torch.int32))
    broken = replace(patch, factors=(bent, *patch.factors[1:]))
    key = Key("patch", "a", "b")
    with pytest.raises(Unreadable, match="torn"):
        read(b"".join(serde.dump(key, Stored(broken))), key)
    assert isinstance(read(b"".join(serde.dump(key, Stored(patch))), key).entry, Patch)
