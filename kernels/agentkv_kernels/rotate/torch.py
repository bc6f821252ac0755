"""R(δ) with plain tensor ops; any device, and the path that CPUs take."""

from collections.abc import Sequence

import torch
from torch import Tensor

from agentkv_kernels.checks import check_out, check_rope
from agentkv_kernels.rotate.bands import Bands, Table, arithmetic, bands_of, blocks, table_of, turn
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
        if in_place or x.dtype != arithmetic(x.dtype):
            _turn_through_scratch(block, rope, rows, specs, target, in_place)
        else:
            _turn_into(block, rope, rows, specs, target)
    return out


def tables_of(rope: Rope, specs: Sequence[int], rows: slice, block: Tensor) -> dict[int, Table]:
    """The tables that `specs` name, for the tokens of block [L, n, H, D]."""
    heads, width = block.shape[2:]
    dtype = arithmetic(block.dtype)
    return {spec: table_of(rope, spec, rows, heads, width, dtype) for spec in set(specs) if spec >= 0}


def scratch_like(block: Tensor, rope: Rope) -> Bands:
    """One layer of scratch in the arithmetic dtype, seen as the same [n, H, D] for every layer."""
    scratch = torch.empty(block.shape[1:], dtype=arithmetic(block.dtype), device=block.device)
    return bands_of(scratch.expand(block.shape), rope)


def _turn_into(block: Tensor, rope: Rope, rows: slice, specs: list[int], target: Tensor) -> None:
    tables = tables_of(rope, specs, rows, block)
    source, into = bands_of(block, rope), bands_of(target, rope)
    for layer, spec in enumerate(specs):
        if spec < 0:
            into.whole[layer].copy_(source.whole[layer])
        else:
            turn(into, source, layer, tables[spec], None)


def _turn_through_scratch(
    block: Tensor, rope: Rope, rows: slice, specs: list[int], target: Tensor, in_place: bool
) -> None:
    tables = tables_of(rope, specs, rows, block)
    into = scratch_like(block, rope)
    wide = block.dtype == arithmetic(block.dtype)
    source = bands_of(block, rope) if wide else scratch_like(block, rope)
    for layer, spec in enumerate(specs):
        if spec < 0:
            if not in_place:
                target[layer].copy_(block[layer])
            continue
        if not wide:
            source.whole[layer].copy_(block[layer])
        turn(into, source, layer, tables[spec], None)
        target[layer].copy_(into.whole[layer])
