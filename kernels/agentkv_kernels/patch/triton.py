"""Move a chunk's slots into the window on a GPU: one launch for keys, values and all layers."""

# mypy: disable-error-code="no-untyped-def"
# A @triton.jit function takes pointers and traced values that Python has no types for.

from collections.abc import Iterator, Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from agentkv_kernels.checks import check_place, stands_there
from agentkv_kernels.rotate.lanes import (
    COMPUTE,
    by_token,
    lanes,
    load_angles,
    pair_columns,
    used_lanes,
)
from agentkv_kernels.types import Factors, Rope

RANKS_PER_STEP = 16
# A program holds some rows of one head, or of a part of a wide one: any more spills registers.
LANES_PER_PROGRAM = 64
BYTES_PER_PROGRAM = 16384  # in the arithmetic dtype


def place(
    dst: Sequence[Tensor],
    index: Tensor | int,
    src: Sequence[Tensor],
    rope: Sequence[Rope | None],
    factors: Sequence[Factors | None],
) -> None:
    """Write every slot; arguments, dtypes and errors as in `agentkv_kernels.patch.torch.place`.

    Two neighbouring slots of one shape, dtype and stride share a launch; others take one each.
    """
    check_place(dst, index, src, rope, factors)
    slots = [
        (to, of, turn, low_rank)
        for to, of, turn, low_rank in zip(dst, src, rope, factors, strict=True)
        if turn is not None or low_rank is not None or not stands_there(to, index, of)
    ]
    for group in _groups(slots):
        to, of = group[0][:2]
        layers, tokens, heads, _ = of.shape
        if not of.numel():
            continue
        options = launch_options(group, isinstance(index, int))
        grid = (triton.cdiv(tokens, options["TOKENS"]), heads * options["PARTS"], layers * len(group))
        arguments = [argument for slot in group for argument in _arguments(*slot)]
        absent = [None] * (len(_arguments(*group[0])) * (2 - len(group)))
        _place_kernel[grid](
            *arguments, *absent, index, tokens, layers, heads, *to.stride(), *of.stride(), **options
        )


Slot = tuple[Tensor, Tensor, Rope | None, Factors | None]


def _groups(slots: list[Slot]) -> Iterator[list[Slot]]:
    while slots:
        pair = slots[:2]
        alike = {(to.stride(), of.stride(), of.shape, of.dtype) for to, of, *_ in pair}
        take = 2 if len(pair) == 2 and len(alike) == 1 else 1
        yield slots[:take]
        slots = slots[take:]


def _arguments(to: Tensor, of: Tensor, rope: Rope | None, factors: Factors | None) -> list[Any]:
    turned: tuple[Tensor | None, ...] = (None, None, None)
    if rope is not None:
        turned = (*by_token(rope, of.shape[1]), rope.spec_of_layer.to(of.device))
    added: tuple[Tensor | int | None, ...] = (None, None, None, 0)
    if factors is not None and factors.left.shape[1]:
        left, right, offsets = factors
        added = (left.contiguous(), right.contiguous(), offsets.to(of.device), left.shape[1])
    return [to, of, *turned, *added]


def launch_options(group: list[Slot], contiguous: bool) -> dict[str, Any]:
    """The compile-time arguments of one launch over one or two slots."""
    src = group[0][1]
    width = src.shape[-1]
    halves = [0 if rope is None else rope.cos.shape[-1] for _, _, rope, _ in group]
    starts = [0 if rope is None else rope.start for _, _, rope, _ in group]
    pairings = [rope is not None and rope.style == "interleaved" for _, _, rope, _ in group]
    pad = [0] * (2 - len(group))
    halves, starts, pairings = halves + pad, starts + pad, pairings + [False] * len(pad)
    count = min(LANES_PER_PROGRAM, max(lanes(width, half) for half in halves))
    parts = max(triton.cdiv(used_lanes(width, half), count) for half in halves)
    row_bytes = 2 * count * (8 if COMPUTE[src.dtype] == tl.float64 else 4)
    return {
        "HALF_0": halves[0], "START_0": starts[0], "INTERLEAVED_0": pairings[0],
        "HALF_1": halves[1], "START_1": starts[1], "INTERLEAVED_1": pairings[1],
        "WIDTH": width, "SLOTS": len(group), "PAGED": not contiguous, "COMPUTE": COMPUTE[src.dtype],
        "LANES": count, "RANKS": RANKS_PER_STEP, "TOKENS": max(16, min(32, BYTES_PER_PROGRAM // row_bytes)),
        "PARTS": parts, "enable_fp_fusion": True,
    }  # fmt: skip


@triton.jit
def _place_slot(
    dst, src, cos, sin, spec_of_layer, left, right, offsets, total_rank,
    index, layer, tokens, heads, dst_layer, dst_row, dst_head, dst_dim, src_layer, src_row, src_head, src_dim,
    HALF: tl.constexpr, START: tl.constexpr, INTERLEAVED: tl.constexpr, WIDTH: tl.constexpr,
    PAGED: tl.constexpr, COMPUTE: tl.constexpr,
    LANES: tl.constexpr, PARTS: tl.constexpr, TOKENS: tl.constexpr, RANKS: tl.constexpr,
):  # fmt: skip
    head = (tl.program_id(1) // PARTS).to(tl.int64)
    lane = tl.program_id(1) % PARTS * LANES + tl.arange(0, LANES)
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    live = token < tokens
    wide_token = token.to(tl.int64)
    first, second, has_first, has_second = pair_columns(lane, HALF, WIDTH, START, INTERLEAVED)
    mask_first, mask_second = live[:, None] & has_first[None, :], live[:, None] & has_second[None, :]

    src += layer * src_layer + head * src_head
    src_at = wide_token[:, None] * src_row
    a = tl.load(src + src_at + first[None, :] * src_dim, mask=mask_first, other=0.0).to(COMPUTE)
    b = tl.load(src + src_at + second[None, :] * src_dim, mask=mask_second, other=0.0).to(COMPUTE)
    if cos is not None:
        spec = tl.load(spec_of_layer + layer)
        cos_t, sin_t = load_angles(cos, sin, spec, wide_token, live, lane, tokens, HALF, COMPUTE)
        a, b = a * cos_t - b * sin_t, b * cos_t + a * sin_t  # [TOKENS, LANES]

    if left is not None:
        low, high = tl.load(offsets + layer), tl.load(offsets + layer + 1)
        left_at = left + wide_token[:, None] * total_rank
        right_at = right + head * WIDTH
        features = heads * WIDTH
        for start in range(low, high, RANKS):
            rank = start + tl.arange(0, RANKS)
            used = rank < high
            u = tl.load(left_at + rank[None, :], mask=live[:, None] & used[None, :], other=0.0)
            rows = right_at + rank.to(tl.int64)[:, None] * features
            v_first = tl.load(rows + first[None, :], mask=used[:, None] & has_first[None, :], other=0.0)
            v_second = tl.load(rows + second[None, :], mask=used[:, None] & has_second[None, :], other=0.0)
            # tf32 holds every bf16 and fp16 number exactly, so widened narrow factors lose nothing in it.
            NARROW: tl.constexpr = left.dtype.element_ty.primitive_bitwidth < 32 and tl.float32 == COMPUTE
            PRECISION: tl.constexpr = "tf32" if NARROW else "ieee"
            u, v_first, v_second = u.to(COMPUTE), v_first.to(COMPUTE), v_second.to(COMPUTE)
            a = tl.dot(u, v_first, acc=a, input_precision=PRECISION, out_dtype=COMPUTE)
            b = tl.dot(u, v_second, acc=b, input_precision=PRECISION, out_dtype=COMPUTE)

    row = tl.load(index + token, mask=live, other=0) if PAGED else wide_token + index
    dst += layer * dst_layer + head * dst_head
    dst_at = row[:, None] * dst_row
    kind = dst.dtype.element_ty
    tl.store(dst + dst_at + first[None, :] * dst_dim, a.to(kind), mask=mask_first)
    tl.store(dst + dst_at + second[None, :] * dst_dim, b.to(kind), mask=mask_second)


@triton.jit
def _place_kernel(
    dst_0, src_0, cos_0, sin_0, spec_0, left_0, right_0, offsets_0, total_0,
    dst_1, src_1, cos_1, sin_1, spec_1, left_1, right_1, offsets_1, total_1,
    index, tokens, layers, heads,
    dst_layer, dst_row, dst_head, dst_dim, src_layer, src_row, src_head, src_dim,
    HALF_0: tl.constexpr, START_0: tl.constexpr, INTERLEAVED_0: tl.constexpr,
    HALF_1: tl.constexpr, START_1: tl.constexpr, INTERLEAVED_1: tl.constexpr,
    WIDTH: tl.constexpr, SLOTS: tl.constexpr, PAGED: tl.constexpr, COMPUTE: tl.constexpr,
    LANES: tl.constexpr, PARTS: tl.constexpr, TOKENS: tl.constexpr, RANKS: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(2)
    layer = (pair % layers).to(tl.int64)
    if SLOTS == 1 or pair < layers:
        _place_slot(
            dst_0, src_0, cos_0, sin_0, spec_0, left_0, right_0, offsets_0, total_0,
            index, layer, tokens, heads,
            dst_layer, dst_row, dst_head, dst_dim, src_layer, src_row, src_head, src_dim,
            HALF_0, START_0, INTERLEAVED_0, WIDTH, PAGED, COMPUTE, LANES, PARTS, TOKENS, RANKS,
        )  # fmt: skip
    else:
        _place_slot(
            dst_1, src_1, cos_1, sin_1, spec_1, left_1, right_1, offsets_1, total_1,
            index, layer, tokens, heads,
            dst_layer, dst_row, dst_head, dst_dim, src_layer, src_row, src_head, src_dim,
            HALF_1, START_1, INTERLEAVED_1, WIDTH, PAGED, COMPUTE, LANES, PARTS, TOKENS, RANKS,
        )  # fmt: skip
