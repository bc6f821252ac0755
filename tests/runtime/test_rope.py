"""R(δ): tables, and what they do to a vector."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentkv.errors import InvalidInput
from agentkv.rope import LayerRopes, RopeSpec, build, tables

FREQUENCIES = torch.tensor([1.0, 0.1, 0.003], dtype=torch.float64)
SPEC = RopeSpec(FREQUENCIES, "half", width=6)


def test_tables_hold_the_angle_of_each_token_and_frequency() -> None:
    cos, sin = tables((SPEC,), torch.tensor([0, 7, -2]), torch.float64)
    assert cos.shape == sin.shape == (1, 3, 3)
    for row, delta in enumerate([0, 7, -2]):
        for column, frequency in enumerate([1.0, 0.1, 0.003]):
            assert cos[0, row, column].item() == pytest.approx(math.cos(delta * frequency), abs=1e-15)
            assert sin[0, row, column].item() == pytest.approx(math.sin(delta * frequency), abs=1e-15)


def test_far_tables_are_rounded_once() -> None:
    """An angle of 131071 radians taken in fp32 would be off by up to 8e-3."""
    delta = torch.tensor([131071])
    cos, sin = tables((SPEC,), delta)
    assert cos.dtype == sin.dtype == torch.float32
    assert cos[0, 0, 1].item() == pytest.approx(math.cos(131071 * 0.1), abs=6e-8)
    assert sin[0, 0, 1].item() == pytest.approx(math.sin(131071 * 0.1), abs=6e-8)


def test_one_table_per_spec() -> None:
    slow = RopeSpec(FREQUENCIES / 10, "half", width=6)
    cos, _ = tables((SPEC, slow), torch.tensor([5]), torch.float64)
    assert torch.equal(cos[0], tables((SPEC,), torch.tensor([5]), torch.float64)[0][0])
    assert torch.equal(cos[1], tables((slow,), torch.tensor([5]), torch.float64)[0][0])
    assert not torch.equal(cos[0], cos[1])


@given(st.integers(-100_000, 100_000), st.integers(-100_000, 100_000))
def test_two_moves_are_one(first: int, second: int) -> None:
    def turn(delta: int) -> torch.Tensor:
        return torch.complex(*tables((SPEC,), torch.tensor([delta]), torch.float64))

    assert (turn(first) * turn(second) - turn(first + second)).abs().max() < 1e-9
    assert (turn(first) * turn(-first) - 1).abs().max() < 1e-9


def test_build_carries_layers_style_and_start() -> None:
    spec = RopeSpec(FREQUENCIES, "interleaved", width=6, start=2)
    rope = build(LayerRopes((spec,), of_layer=(0, -1, 0)), torch.tensor([1, 2]))
    assert rope.spec_of_layer.tolist() == [0, -1, 0]
    assert rope.spec_of_layer.dtype == torch.int32
    assert (rope.style, rope.start) == ("interleaved", 2)
    assert rope.cos.dtype == torch.float32


@pytest.mark.parametrize(
    "delta",
    [torch.tensor([1.0]), torch.tensor(3), torch.zeros(2, 2, dtype=torch.int64), torch.tensor([True])],
)
def test_delta_must_be_a_vector_of_whole_numbers(delta: torch.Tensor) -> None:
    with pytest.raises(InvalidInput, match=r"expected torch.int64 \[T\]"):
        tables((SPEC,), delta)


@pytest.mark.parametrize(("table", "width"), [(FREQUENCIES, 8), (FREQUENCIES.float(), 6)])
def test_a_spec_with_a_wrong_table_is_refused(table: torch.Tensor, width: int) -> None:
    with pytest.raises(InvalidInput, match="inv_freq"):
        RopeSpec(table, "half", width=width)


def test_layers_of_one_slot_share_a_band() -> None:
    other = RopeSpec(FREQUENCIES, "half", width=6, start=2)
    with pytest.raises(InvalidInput, match="one band"):
        LayerRopes((SPEC, other), of_layer=(0, 1))
    with pytest.raises(InvalidInput, match="indices from -1 to 0"):
        LayerRopes((SPEC,), of_layer=(0, 1))
