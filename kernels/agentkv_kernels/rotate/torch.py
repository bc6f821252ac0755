"""R(δ) with plain tensor ops; any device, and the path that CPUs take."""

import torch
from torch import Tensor

from agentkv_kernels.checks import check_out, check_rope
from agentkv_kernels.rotate.blocks import BlockTurn, blocks
from agentkv_kernels.types import Rope


def rotate(x: Tensor, rope: Rope, out: Tensor | None = None) -> Tensor:
    """Return R(δ_t) x[l, t] for every layer and token.

    x: [L, T, H, D] bf16, fp16, fp32 (fp32 arithmetic, rounded once) or fp64 (fp64 arithmetic), any
    strides. `out`: None for a new tensor, x itself to rotate in place, or a tensor like x that shares
    no memory with it. Layers whose spec is -1 are copied. Raises ShapeError, OverlapError.
    """
    check_rope(x, rope)
    out = torch.empty_like(x) if out is None else out
    in_place = check_out(x, out)
    specs: list[int] = rope.spec_of_layer.tolist()
    _, tokens, heads, width = x.shape
    for rows in blocks(tokens, heads * width):
        block, target = x[:, rows], out[:, rows]  # [L, n, H, D]
        turn = BlockTurn(rope, rows, specs, block, target)
        for layer, spec in enumerate(specs):
            held = turn(layer) if spec >= 0 else None if in_place else block[layer]
            if held is not None:
                target[layer].copy_(held)
    return out
