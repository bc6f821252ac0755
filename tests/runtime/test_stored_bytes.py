"""The seeds of the fuzzer are read, and what is bent is read or refused."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stored_bytes import SEALED, opened, read, sealed, seeds

SEEDS = seeds()


def test_every_seed_is_read() -> None:
    """A fuzzer that starts from what is refused never gets far."""
    assert all(map(read, SEEDS))
    assert all(opened(sealed(seed[1:])) == seed[1:] for seed in SEEDS if seed[0] == SEALED)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_bent_seed_is_read_or_refused(data: st.DataObject) -> None:
    seed = bytearray(data.draw(st.sampled_from(SEEDS)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(1, len(seed)))
        seed[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    read(bytes(seed))
