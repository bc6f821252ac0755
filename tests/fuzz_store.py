"""Coverage-guided fuzzing of what reads stored bytes: ``python -m tests.fuzz_store -max_total_time=60``.

Needs the package atheris; takes libFuzzer's arguments. Half of the inputs get a right checksum, so that the
rest of the reader is reached.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["agentkv.store"]):
    from agentkv.store import serde
    from agentkv.store.blob import Bytes, Unreadable, verify
    from agentkv.store.key import Key
    from agentkv.store.notes import note_of

from xxhash import xxh3_128

from tests.runtime.test_blob import KEY, PAYLOAD, WHOLE

MARK = b'{"__metadata__":{"checksum":"'


def sealed(tail: bytes) -> bytes:
    """A blob whose header ends like this, its checksum right."""
    text = MARK + b"0" * 32 + tail
    length = len(text).to_bytes(8, "little")
    good = xxh3_128(length + text + PAYLOAD).hexdigest().encode()
    return length + MARK + good + tail + PAYLOAD


def one(data: bytes) -> None:
    """Whatever it is, it is read or refused."""
    kind, rest = data[:1], data[1:]
    if kind < b"\x20":
        try:
            note_of(rest.decode(errors="replace"))
        except (ValueError, KeyError, TypeError, AttributeError):
            return
        return
    blob = sealed(rest) if kind < b"\xa0" else rest
    for reading in (lambda: serde.load(Bytes(blob), KEY), lambda: verify(Bytes(blob))):
        try:
            reading()
        except Unreadable:
            continue


def main() -> None:
    seed = WHOLE[8 + len(MARK) + 32 : len(WHOLE) - len(PAYLOAD)]
    one(b"\x80" + seed)
    assert isinstance(KEY, Key)
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
