"""The one hash behind every identity: BLAKE2b with 160 bits.

Ids decide whose KV a prompt is given, and whoever writes the prompt may choose its tokens. A fast hash can be
made to collide, whatever its width; this one cannot, so that no caller has to think of equal ids with unequal
contents. docs/stores.md has what it costs.
"""

from hashlib import blake2b

DIGEST_BYTES = 20


def hasher(purpose: bytes) -> blake2b:
    """An empty hash for one purpose (at most 16 bytes): equal data under two purposes never hash alike."""
    return blake2b(digest_size=DIGEST_BYTES, person=purpose)


def digest_of(purpose: bytes, *fields: tuple[bytes, bytes]) -> str:
    """40 hex characters over (tag, payload) fields. Tag and length keep "ab","c" apart from "a","bc"."""
    state = hasher(purpose)
    for tag, data in fields:
        state.update(b"%b:%d:" % (tag, len(data)))
        state.update(data)
    return state.hexdigest()
