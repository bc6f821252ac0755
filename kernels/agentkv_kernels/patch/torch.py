"""Move a chunk's slots into the window with plain tensor ops; any device, and the path that CPUs take."""

from collections.abc import Sequence

import torch
from torch import Tensor

from agentkv_kernels.checks import check_place
from agentkv_kernels.patch.lowrank import product
from agentkv_kernels.rotate.bands import arithmetic, bands_of, blocks, turn
from agentkv_kernels.rotate.torch import scratch_like, tables_of
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
    for to, of, turned, low_rank in zip(dst, src, rope, factors, strict=True):
        for rows in blocks(of.shape[1], of.shape[2] * of.shape[3]):
            if isinstance(index, int):
                target = to[:, index + rows.start : index + rows.stop]  # [L, n, H, D]
                _place_block(target, None, of[:, rows], turned, low_rank, rows)
            else:
                _place_block(to, index[rows], of[:, rows], turned, low_rank, rows)


def _place_block(
    to: Tensor, index: Tensor | None, block: Tensor, rope: Rope | None, factors: Factors | None, rows: slice
) -> None:
    """Place block [L, n, H, D] into `to` [L, n, H, D], or into rows `index` of `to` [L, rows, H, D]."""
    dtype = arithmetic(block.dtype)
    specs = [-1] * block.shape[0] if rope is None else rope.spec_of_layer.tolist()
    bounds = [0] * (block.shape[0] + 1) if factors is None else factors.offsets.tolist()
    wide = block.dtype == dtype
    direct = wide and index is None
    if rope is not None:
        tables = tables_of(rope, specs, rows, block)
        into = bands_of(to, rope) if direct else scratch_like(block, rope)
        source = bands_of(block, rope) if wide else scratch_like(block, rope)
    targets, layers = to.unbind(0), block.unbind(0)
    for layer, spec in enumerate(specs):
        rank = slice(bounds[layer], bounds[layer + 1])
        base = None
        if factors is not None and rank.start < rank.stop:
            base = product(factors.left[rows, rank], factors.right[rank], dtype).view(block.shape[1:])
        if spec >= 0:
            if not wide:
                source.whole[layer].copy_(layers[layer])
            turn(into, source, layer, tables[spec], base)
            if not direct:
                _store(targets[layer], index, into.whole[layer])
        elif base is None:
            _store(targets[layer], index, layers[layer])
        elif direct:
            torch.add(layers[layer], base, out=targets[layer])
        else:
            _store(targets[layer], index, base.add_(layers[layer]))


def _store(target: Tensor, index: Tensor | None, value: Tensor) -> None:
    if index is None:
        target.copy_(value)
        return
    if value.untyped_storage().data_ptr() == target.untyped_storage().data_ptr():
        value = value.clone()  # index_copy_ refuses views of one storage, even of rows that do not meet
    target.index_copy_(0, index, value.to(target.dtype))
