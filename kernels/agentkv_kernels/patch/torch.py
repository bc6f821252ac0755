"""Move a chunk's slots into the window with plain tensor ops; any device, and the path that CPUs take."""

from collections.abc import Sequence

import torch
from torch import Tensor

from agentkv_kernels.checks import check_place
from agentkv_kernels.patch.lowrank import product
from agentkv_kernels.rotate.blocks import BlockTurn, arithmetic, blocks
from agentkv_kernels.types import Factors, Rope


def place(
    dst: Sequence[Tensor],
    index: Tensor | int,
    src: Sequence[Tensor],
    rope: Sequence[Rope | None],
    factors: Sequence[Factors | None],
) -> None:
    """Write dst[s][l, row(t)] = R_s(δ_t) src[s][l, t] + left_s[t] right_s for every slot, layer and token.

    dst[s]: [L, rows, H, D]; src[s]: [L, T, H, D] of the same dtype; row(t) = index + t for an int, or
    index[t] for an int64 [T] of distinct rows. rope[s] None: the slot is not turned. factors[s] None:
    nothing is added. fp32 arithmetic (fp64 for fp64 slots), rounded once. src may be a view of dst's
    storage only where it covers other rows. Raises ShapeError, RowIndexError and OverlapError before
    anything is written.
    """
    check_place(dst, index, src, rope, factors)
    paged = None if isinstance(index, int) else index
    for to, of, turned, low_rank in zip(dst, src, rope, factors, strict=True):
        region = to[:, index : index + of.shape[1]] if isinstance(index, int) else to
        if turned is None and low_rank is None:
            _store(region, paged, of, 1)
            continue
        numbers = of.shape[2] * of.shape[3]
        # Starting a product costs several plain ops: blocks twice as long pay it half as often.
        for rows in blocks(of.shape[1], numbers if low_rank is None else numbers // 2):
            if paged is None:
                _place_block(region[:, rows], None, of[:, rows], turned, low_rank, rows)
            else:
                _place_block(region, paged[rows], of[:, rows], turned, low_rank, rows)


def _place_block(
    to: Tensor, index: Tensor | None, block: Tensor, rope: Rope | None, factors: Factors | None, rows: slice
) -> None:
    """Place block [L, n, H, D] into `to` [L, n, H, D], or into rows `index` of `to` [L, rows, H, D]."""
    dtype, layers = arithmetic(block.dtype), block.shape[0]
    specs = [-1] * layers if rope is None else rope.spec_of_layer.tolist()
    bounds = [0] * (layers + 1) if factors is None else factors.offsets.tolist()
    turn = None if rope is None else BlockTurn(rope, rows, specs, block, to if index is None else None)
    for layer, (target, source) in enumerate(zip(to.unbind(0), block.unbind(0), strict=True)):
        rank = slice(bounds[layer], bounds[layer + 1])
        base = None
        if factors is not None and rank.start < rank.stop:
            base = product(factors.left[rows, rank], factors.right[rank], dtype).view(source.shape)
        if turn is not None and specs[layer] >= 0:
            held = turn(layer, base)
        elif base is None:
            held = source
        elif index is None and target.dtype == dtype:
            held = None
            torch.add(source, base, out=target)
        else:
            held = base.add_(source)
        if held is not None:
            _store(target, index, held, 0)


def _store(target: Tensor, index: Tensor | None, value: Tensor, axis: int) -> None:
    """Round `value` into all of `target`, or into the rows `index` of its `axis`."""
    if index is None:
        target.copy_(value)
        return
    if value.untyped_storage().data_ptr() == target.untyped_storage().data_ptr():
        value = value.clone()  # index_copy_ refuses views of one storage, even of rows that do not meet
    target.index_copy_(axis, index, value.to(target.dtype))
