"""All that reads stored bytes, behind one function of bytes: for fuzzing, and for a test of its seeds."""

from __future__ import annotations

from functools import lru_cache

import torch
from xxhash import xxh3_128

from agentkv.errors import BadStore, FingerprintMismatch
from agentkv.kv import KVBlock
from agentkv.store import serde
from agentkv.store.base import Document, Key, Stored
from agentkv.store.blob import Bytes, Unreadable, read_header, verify
from agentkv.store.codec import RAW, Codecs
from agentkv.store.memory import MemoryStore
from agentkv.store.notes import note_of, note_text
from agentkv.testing import RecordingEngine, recording_engine, rows
from agentkv.testing.stores import _media, _patch
from tests.runtime.test_blob import KEY, STORED

NOTE, WINDOW, SEALED, RAW_BLOB = range(4)
MARK = b'{"__metadata__":{"checksum":"'
NAME = "fuzzed"


def sealed(data: bytes) -> bytes:
    """A blob of this header and these tensors with its checksum made right, as an attacker would. data: four
    bytes of length of what follows the checksum in the header, that, and the tensors."""
    size = int.from_bytes(data[:4], "little") % max(1, len(data))
    tail, payload = data[4 : 4 + size], data[4 + size :]
    text = MARK + b"0" * 32 + tail
    length = len(text).to_bytes(8, "little")
    good = xxh3_128(length + text + payload).hexdigest().encode()
    return length + MARK + good + tail + payload


def opened(blob: bytes) -> bytes:
    """Inverse of `sealed`."""
    start, end = 8 + len(MARK) + 32, 8 + int.from_bytes(blob[:8], "little")
    return (end - start).to_bytes(4, "little") + blob[start:end] + blob[end:]


def read(data: bytes) -> bool:
    """Whether it is read or refused. Raises anything else that a reader raises, and AssertionError where two
    of them disagree. data: one byte that says what the rest is."""
    kind, rest = data[:1], data[1:]
    match int.from_bytes(kind, "little") % 4:
        case 0:
            return _note(rest.decode(errors="replace"))
        case 1:
            return _window(rest)
        case 2:
            return _blob(sealed(rest))
        case _:
            return _blob(rest)


def seeds() -> list[bytes]:
    """One of everything that is stored; each is read."""
    entries = [Stored(e) for e in (_patch(), _media(), Document(b"{}"))]
    lossy = (Codecs("int8"), Codecs("fp8"), Codecs("bfloat16"))
    blobs = [_dumped(KEY, STORED, codecs) for codecs in (RAW, *lossy)]
    keys = (Key("removal", "a", "b>c"), Key("features", "ff" * 32, "f"), Key("window", NAME))
    blobs += [_dumped(key, stored) for key, stored in zip(keys, entries, strict=True)]
    found = [bytes([NOTE]) + note_text(STORED.note).encode(), bytes([NOTE]), bytes([WINDOW]) + _saved()]
    found += [bytes([SEALED]) + opened(blob) for blob in blobs]
    return found + [bytes([RAW_BLOB]) + blob for blob in blobs]


def _dumped(key: Key, stored: Stored, codecs: Codecs = RAW) -> bytes:
    return b"".join(serde.dump(key, stored, codecs))


def _note(text: str) -> bool:
    try:
        note_of(text)
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
    return True


def _blob(blob: bytes) -> bool:
    """Into memory of its own and into rows, which give the same."""
    try:
        verify(Bytes(blob))
        key = read_header(Bytes(blob)).record.key
        found = serde.load(Bytes(blob), key)
        if found.origin is not None:
            assert found.origin.same(serde.origin_of(Bytes(blob), key))
    except Unreadable:
        return False
    if isinstance(found.entry, KVBlock):
        room = KVBlock(tuple(map(torch.zeros_like, found.entry.slots)), found.entry.positions)
        again = serde.load(Bytes(blob), key, room).entry
        assert isinstance(again, KVBlock)
        assert torch.equal(again.positions, found.entry.positions)
        bits = zip(again.slots, found.entry.slots, strict=True)
        assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in bits if a.numel())
    return True


@lru_cache(maxsize=1)
def _engine() -> RecordingEngine:
    """One whose store holds a saved window, with a past."""
    engine = recording_engine(store=MemoryStore(1 << 20))
    window = engine.window("fast")
    window.append("w1 w2 w3", kind="system", pin=True)
    handles = [window.append(f"w{i} w{i + 1} w{i + 2}") for i in (5, 9, 13)]
    window.commit()
    window.evict(handles[0])
    window.move(handles[2], before=handles[1])
    window.save(NAME)
    window.close()
    return engine


def _saved() -> bytes:
    found = _engine().store.get(Key("window", NAME))
    assert found is not None
    assert isinstance(found.entry, Document)
    return found.entry.text


def _window(text: bytes) -> bool:
    """What it opens as holds the tokens that it says."""
    engine = _engine()
    engine.store.put(Key("window", NAME + "?"), Document(text))
    try:
        with engine.open(NAME + "?") as window:
            assert rows(window.kv) == window.ids().tolist()
    except (BadStore, FingerprintMismatch):
        return False
    finally:
        engine.backend.calls.clear()
    return True
