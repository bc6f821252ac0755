"""Move a chunk's slots into the window on any device, and the path that CPUs take: turn, then multiply."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from agentkv_kernels.checks import check_place, stands_there
from agentkv_kernels.rotate.torch import arithmetic, blocks, turn, turned
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
    nothing is added. fp32 arithmetic (fp64 for fp64 slots), rounded once. src[s] may be a view of dst's
    storage where it covers other rows, or exactly the rows that it is written to: it then changes where it
    stands, and a slot that is neither turned nor added to is not touched. Raises ShapeError, RowIndexError
    and OverlapError before anything is written.
    """
    check_place(dst, index, src, rope, factors)
    for to, of, rotation, low_rank in zip(dst, src, rope, factors, strict=True):
        if rotation is None and low_rank is None:
            if not stands_there(to, index, of):
                _store(to, index, of)
        elif isinstance(index, int) and of.dtype == arithmetic(of.dtype) and _dense(to):
            _place_here(to[:, index : index + of.shape[1]], of, rotation, low_rank)
        else:
            for layers, rows in blocks(of):
                block = turned(of, rotation, layers, rows)  # [l, n, H, D]
                if low_rank is not None:
                    _add(block, low_rank, layers, rows)
                _store(to[layers], index + rows.start if isinstance(index, int) else index[rows], block)


def _place_here(to: Tensor, of: Tensor, rope: Rope | None, factors: Factors | None) -> None:
    """Turn `of` [L, T, H, D] straight into `to` [L, T, H, D], which may be `of` itself, and add to that."""
    if rope is not None:
        turn(of, rope, to)
    elif to.data_ptr() != of.data_ptr():
        to.copy_(of)
    if factors is not None:
        _add(to, factors, slice(None), slice(None))


def _dense(x: Tensor) -> bool:
    """Whether a token's heads follow each other without gaps, so that x[l] is a matrix [T, H · D]."""
    return x.stride(3) == 1 and (x.shape[2] == 1 or x.stride(2) == x.shape[3])


def _add(x: Tensor, factors: Factors, layers: slice, rows: slice) -> None:
    """Add left[rows] right of each of the `layers` to x [l, n, H, D], dense and in the arithmetic dtype."""
    bounds = list(pairwise(factors.offsets.tolist()))[layers]
    for value, (first, last) in zip(x, bounds, strict=True):
        if first < last:
            left, right = factors.left[rows, first:last], factors.right[first:last]
            value.flatten(1).addmm_(left.to(x.dtype), right.to(x.dtype))  # a view, since x is dense


def _store(to: Tensor, index: Tensor | int, value: Tensor) -> None:
    """Round `value` [L, n, H, D] into rows `index` of `to` [L, rows, H, D]."""
    if isinstance(index, int):
        to[:, index : index + value.shape[1]].copy_(value)
        return
    if value.untyped_storage().data_ptr() == to.untyped_storage().data_ptr():
        value = value.clone()  # index_copy_ refuses views of one storage, even of rows that do not meet
    to.index_copy_(1, index, value.to(to.dtype))
