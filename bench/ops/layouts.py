"""Caches of the model families, as the kernels see them: shapes, bands and which layers turn."""

from __future__ import annotations

from typing import NamedTuple

import torch
from agentkv_kernels.types import Factors, Rope

DELTA = 731


class Slot(NamedTuple):
    """One of the tensors that a layer caches, [T, heads, width].

    band: dims that turn, from `start` on; 0 for a slot of pure content. specs: frequency table of each layer,
    in a cycle; -1 for a layer without positions.
    """

    heads: int
    width: int
    band: int = 0
    start: int = 0
    style: str = "half"
    specs: tuple[int, ...] = (0,)


class Layout(NamedTuple):
    """What a benchmark moves: some layers and tokens of these slots, more than any cache holds."""

    layers: int
    tokens: int
    slots: tuple[Slot, ...]


def _keys(layers: int, tokens: int, heads: int, width: int, **band: object) -> Layout:
    return Layout(layers, tokens, (Slot(heads, width, **{"band": width, **band}),))  # type: ignore[arg-type]


SMOLLM2 = "GQA 3 × 64"
MLA = "MLA content 512, rope key 64"
LAYOUTS = {
    SMOLLM2: _keys(30, 2048, 3, 64),
    "MHA 14 × 64": _keys(12, 1024, 14, 64),
    "M-RoPE, GQA 2 × 128": _keys(28, 2048, 2, 128),  # a chunk moves by one δ on all axes: the angles of one
    "16 of 64 dims turn, 8 × 64": _keys(16, 2048, 8, 64, band=16),
    "interleaved pairs, GQA 3 × 64": _keys(30, 2048, 3, 64, style="interleaved"),
    "two thetas, MQA 1 × 256": _keys(26, 2048, 1, 256, specs=(0, 0, 0, 0, 0, 1)),
    "every 4th layer without positions, GQA 4 × 128": _keys(16, 2048, 4, 128, specs=(0, 0, 0, -1)),
    MLA: Layout(16, 8192, (Slot(1, 512), Slot(1, 64, 64, style="interleaved"))),
}
"""Key slots; values are the same without a band. MLA keeps content and rope key in a slot each."""


def rope(slot: Slot, layout: Layout, step: float | None = None) -> Rope | None:
    """What moves the slot by DELTA positions, and by `step` more for every token; None if nothing turns."""
    if not slot.band:
        return None
    moved = torch.tensor([DELTA], dtype=torch.float64)
    if step is not None:
        moved = DELTA + step * torch.arange(layout.tokens, dtype=torch.float64)
    exponent = torch.arange(0, slot.band, 2, dtype=torch.float64) / slot.band
    thetas = [1e4**-exponent, 1e6**-exponent][: max(slot.specs) + 1]
    angle = moved[None, :, None] * torch.stack(thetas)[:, None]  # [S, T or 1, R/2]
    specs = [slot.specs[layer % len(slot.specs)] for layer in range(layout.layers)]
    of_layer = torch.tensor(specs, dtype=torch.int32)
    return Rope(angle.cos().float(), angle.sin().float(), of_layer, slot.style, slot.start)


def factors(slot: Slot, layout: Layout, rank: int, dtype: torch.dtype) -> Factors:
    """Random factors of `rank` in every layer, such that their product is of order one."""
    generator = torch.Generator().manual_seed(2)
    left = torch.randn(layout.tokens, layout.layers * rank, generator=generator) / rank**0.5
    right = torch.randn(layout.layers * rank, slot.heads * slot.width, generator=generator)
    offsets = torch.arange(layout.layers + 1, dtype=torch.int32) * rank
    return Factors(left.to(dtype), right.to(dtype), offsets)
