"""Argument checks shared by every implementation of an op, so that they all refuse the same inputs."""

from collections.abc import Sequence

import torch
from torch import Tensor

from agentkv_kernels.errors import OverlapError, RowIndexError, ShapeError
from agentkv_kernels.types import Factors, Rope

FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
STYLES = ("half", "interleaved")


def check_rope(x: Tensor, rope: Rope) -> None:
    """Raise ShapeError unless `rope` fits x [L, T, H, D]."""
    layers, tokens, _, width = _four_dims("x", x)
    if rope.style not in STYLES:
        raise ShapeError("rope.style", rope.style, STYLES, "name one of the two pairings")
    specs, band = rope.cos.shape[0], 2 * rope.cos.shape[-1]
    if rope.cos.shape != rope.sin.shape or rope.cos.dim() != 3 or rope.cos.shape[1] not in (1, tokens):
        shapes = (tuple(rope.cos.shape), tuple(rope.sin.shape))
        raise ShapeError(
            "rope.cos, rope.sin",
            shapes,
            f"both [S, {tokens}, R/2] or [S, 1, R/2]",
            "build one row per token, or one for all",
        )
    if rope.start < 0 or band == 0 or rope.start + band > width:
        span = f"{rope.start}..{rope.start + band}"
        raise ShapeError("rope band", span, f"a span inside 0..{width}", "check `start` and the width of cos")
    if tuple(rope.spec_of_layer.shape) != (layers,):
        got = tuple(rope.spec_of_layer.shape)
        raise ShapeError("rope.spec_of_layer", got, (layers,), "give every layer a spec")
    if rope.spec_of_layer.device.type == "cpu":
        bad = [s for s in rope.spec_of_layer.tolist() if not -1 <= s < specs]
        if bad:
            raise ShapeError("rope.spec_of_layer", bad, f"-1..{specs - 1}", "index a row of cos, or -1")


def check_out(x: Tensor, out: Tensor) -> bool:
    """Return True if out is x (in place), False if they share nothing. Raise ShapeError or OverlapError."""
    if out.shape != x.shape or out.dtype != x.dtype or out.device != x.device:
        got = f"{out.dtype} {tuple(out.shape)} on {out.device}"
        raise ShapeError("out", got, f"{x.dtype} {tuple(x.shape)} on {x.device}", "pass a tensor like x")
    if out.data_ptr() == x.data_ptr() and out.stride() == x.stride():
        return True
    check_apart(out, 0, x)
    return False


def check_factors(src: Tensor, factors: Factors) -> None:
    """Raise ShapeError unless `factors` fits src [L, T, H, D]."""
    layers, tokens, heads, width = src.shape
    left, right, offsets = factors
    total = right.shape[0] if right.dim() == 2 else -1
    if tuple(right.shape) != (total, heads * width):
        raise ShapeError("factors.right", tuple(right.shape), f"[ΣR, {heads * width}]", "one row per rank")
    if tuple(left.shape) != (tokens, total):
        raise ShapeError("factors.left", tuple(left.shape), (tokens, total), "one row per token")
    if left.dtype != right.dtype:
        raise ShapeError("factors.right", right.dtype, left.dtype, "store both sides in one dtype")
    if tuple(offsets.shape) != (layers + 1,):
        raise ShapeError("factors.offsets", tuple(offsets.shape), (layers + 1,), "one bound more than layers")
    if offsets.device.type == "cpu":
        bounds = offsets.tolist()
        if bounds[0] != 0 or bounds[-1] != total or bounds != sorted(bounds):
            raise ShapeError("factors.offsets", bounds, f"rising from 0 to {total}", "pack layers in order")


def check_place(
    dst: Sequence[Tensor],
    index: Tensor | int,
    src: Sequence[Tensor],
    rope: Sequence[Rope | None],
    factors: Sequence[Factors | None],
) -> None:
    """Raise ShapeError, RowIndexError or OverlapError unless the arguments of `place` fit each other."""
    counts = (len(dst), len(src), len(rope), len(factors))
    if len(set(counts)) != 1:
        raise ShapeError("slots of dst, src, rope, factors", counts, "equal counts", "pass None for none")
    for slot, (to, of) in enumerate(zip(dst, src, strict=True)):
        layers, _, heads, width = _four_dims(f"src[{slot}]", of)
        want = (layers, to.shape[1] if to.dim() == 4 else -1, heads, width)
        if tuple(to.shape) != want:
            expected = f"[{layers}, rows, {heads}, {width}]"
            raise ShapeError(f"dst[{slot}]", tuple(to.shape), expected, "match src")
        if to.dtype != of.dtype:
            raise ShapeError(f"dst[{slot}].dtype", to.dtype, of.dtype, "convert the source first")
        check_rows(index, of.shape[1], to.shape[1])
        turn, low_rank = rope[slot], factors[slot]
        if turn is not None:
            check_rope(of, turn)
        if low_rank is not None:
            check_factors(of, low_rank)
    for slot, to in enumerate(dst):
        for other, of in enumerate(src):
            if slot != other or not stands_there(to, index, of):
                check_apart(to, index, of)


def stands_there(dst: Tensor, index: Tensor | int, src: Tensor) -> bool:
    """Whether src is the very rows of dst, from row `index` on, that it is to be placed in."""
    if not isinstance(index, int):
        return False
    there = dst[:, index : index + src.shape[1]]
    return there.data_ptr() == src.data_ptr() and there.stride() == src.stride()


def check_rows(index: Tensor | int, tokens: int, rows: int) -> None:
    """Raise RowIndexError unless every one of `tokens` rows lies in 0..rows-1."""
    if isinstance(index, int):
        if index < 0 or index + tokens > rows:
            raise RowIndexError(f"{index}..{index + tokens - 1}", rows, "grow the slot")
        return
    if index.dtype != torch.int64 or tuple(index.shape) != (tokens,):
        got = f"{index.dtype} {tuple(index.shape)}"
        raise ShapeError("index", got, f"int64 ({tokens},), or an int", "one destination row per token")
    if tokens:
        low, high = (int(v) for v in index.aminmax())
        if low < 0 or high >= rows:
            raise RowIndexError(f"{low}..{high}", rows, "check the page table")


def check_apart(dst: Tensor, index: Tensor | int, src: Tensor) -> None:
    """Raise OverlapError if a row of dst that is written is also read as src.

    Both may be views of one cache: equal strides are resolved row by row, any other sharing whose
    byte ranges meet counts as overlap.
    """
    if not src.numel() or dst.untyped_storage().data_ptr() != src.untyped_storage().data_ptr():
        return
    if src.data_ptr() >= _end(dst) or dst.data_ptr() >= _end(src):
        return
    if dst.stride() == src.stride() and dst.stride(1) > 0 and not _rows_meet(dst, index, src):
        return
    raise OverlapError("place from a slot into itself", "rotate in place, or copy the source first")


def _rows_meet(dst: Tensor, index: Tensor | int, src: Tensor) -> bool:
    layer, row = dst.stride(0), dst.stride(1)
    apart = src.storage_offset() - dst.storage_offset()
    inner = sum((n - 1) * s for n, s in zip(dst.shape[2:], dst.stride()[2:], strict=True)) + 1
    tokens = src.shape[1]
    if inner > row or (dst.shape[0] > 1 and layer < dst.shape[1] * row):
        return True  # rows interleave with each other or with layers: not a layout that can be told apart
    first = apart % layer if dst.shape[0] > 1 else apart
    low, high = first - inner, first + (tokens - 1) * row + inner
    starts = torch.arange(index, index + tokens) if isinstance(index, int) else index.cpu()
    # A view of the next layer's rows wraps around, so the same rows count once more one layer below.
    shifts = (0, layer) if dst.shape[0] > 1 else (0,)
    at: list[int] = (starts * row).tolist()
    return any(low < place + shift < high for place in at for shift in shifts)


def _end(x: Tensor) -> int:
    span = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) + 1
    return x.data_ptr() + span * x.element_size()


def _four_dims(name: str, x: Tensor) -> tuple[int, int, int, int]:
    if x.dim() != 4 or x.dtype not in FLOATS:
        raise ShapeError(name, f"{x.dtype} {tuple(x.shape)}", "a float [L, T, H, D]", "add the missing axes")
    layers, tokens, heads, width = x.shape
    return layers, tokens, heads, width
