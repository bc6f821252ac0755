"""dst[l, index[t]] = R(δ_t) src[l, t] + left[t] right, in fp64, one layer and one rank at a time."""

from collections.abc import Sequence

import torch
from torch import Tensor

from agentkv_kernels.rotate.reference import rotate
from agentkv_kernels.types import Factors, Rope


def place(
    dst: Sequence[Tensor],
    index: Tensor | int,
    src: Sequence[Tensor],
    rope: Sequence[Rope | None],
    factors: Sequence[Factors | None],
) -> None:
    """Write every slot. dst[s]: [L, rows, H, D]; src[s]: [L, T, H, D]; index: int64 [T] or the first row."""
    for to, of, turn, low_rank in zip(dst, src, rope, factors, strict=True):
        value = of.to(torch.float64, copy=True) if turn is None else rotate(of, turn)  # [L, T, H, D]
        if low_rank is not None:
            _add(value, low_rank)
        for t in range(of.shape[1]):
            row = index + t if isinstance(index, int) else int(index[t])
            to[:, row] = value[:, t].to(to.dtype)


def _add(value: Tensor, factors: Factors) -> None:
    layers, tokens, heads, width = value.shape
    for layer in range(layers):
        for rank in range(int(factors.offsets[layer]), int(factors.offsets[layer + 1])):
            column = factors.left[:, rank].double()  # [T]
            direction = factors.right[rank].double()  # [d]
            value[layer] += torch.outer(column, direction).reshape(tokens, heads, width)
