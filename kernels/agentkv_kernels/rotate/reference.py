"""R(δ) in fp64, one pair of dims at a time: the text of the formula, for tests only."""

import torch
from torch import Tensor

from agentkv_kernels.types import Rope


def rotate(x: Tensor, rope: Rope, out: Tensor | None = None) -> Tensor:
    """Return R(δ) x in fp64, or round it once into `out`. x: [L, T, H, D]."""
    half = rope.cos.shape[-1]
    turned = x.to(torch.float64, copy=True)  # [L, T, H, D]
    for layer, spec in enumerate(rope.spec_of_layer.tolist()):
        if spec < 0:
            continue
        for i in range(half):
            first, second = (i, i + half) if rope.style == "half" else (2 * i, 2 * i + 1)
            a = x[layer, :, :, rope.start + first].double()  # [T, H]
            b = x[layer, :, :, rope.start + second].double()
            cos = rope.cos[spec, :, i, None].double()
            sin = rope.sin[spec, :, i, None].double()
            turned[layer, :, :, rope.start + first] = a * cos - b * sin
            turned[layer, :, :, rope.start + second] = b * cos + a * sin
    return turned if out is None else out.copy_(turned)
