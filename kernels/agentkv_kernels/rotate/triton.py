"""R(δ) on a GPU: one launch for all layers, each number read once and written once."""

# mypy: disable-error-code="no-untyped-def"
# A @triton.jit function takes pointers and traced values that Python has no types for.

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from agentkv_kernels.checks import check_out, check_rope
from agentkv_kernels.rotate.lanes import COMPUTE, by_token, lanes, load_angles, pair_columns
from agentkv_kernels.types import Rope

NUMBERS_PER_PROGRAM = 2048


def rotate(x: Tensor, rope: Rope, out: Tensor | None = None) -> Tensor:
    """Return R(δ_t) x[l, t]; arguments, dtypes and errors as in `agentkv_kernels.rotate.torch.rotate`."""
    check_rope(x, rope)
    out = torch.empty_like(x) if out is None else out
    in_place = check_out(x, out)
    layers, tokens, heads, _ = x.shape
    if not x.numel():
        return out
    options = launch_options(x, rope, in_place)
    grid = (triton.cdiv(tokens * heads, options["ROWS"]), layers)
    _rotate_kernel[grid](
        x, out, *by_token(rope, tokens), rope.spec_of_layer.to(x.device),
        tokens, heads, *x.stride(), *out.stride(), **options,
    )  # fmt: skip
    return out


def launch_options(x: Tensor, rope: Rope, in_place: bool) -> dict[str, Any]:
    """The compile-time arguments of one launch."""
    width, half = x.shape[-1], rope.cos.shape[-1]
    count = lanes(width, half)
    return {
        "HALF": half, "WIDTH": width, "START": rope.start, "INTERLEAVED": rope.style == "interleaved",
        "IN_PLACE": in_place, "COMPUTE": COMPUTE[x.dtype], "LANES": count,
        "ROWS": max(1, NUMBERS_PER_PROGRAM // (2 * count)), "enable_fp_fusion": True,
    }  # fmt: skip


@triton.jit
def _rotate_kernel(
    x, out, cos, sin, spec_of_layer, tokens, heads,
    x_layer, x_token, x_head, x_dim, out_layer, out_token, out_head, out_dim,
    HALF: tl.constexpr, WIDTH: tl.constexpr, START: tl.constexpr, INTERLEAVED: tl.constexpr,
    IN_PLACE: tl.constexpr, COMPUTE: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    layer = tl.program_id(1).to(tl.int64)
    spec = tl.load(spec_of_layer + layer)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    rows = tokens * heads
    if IN_PLACE:  # nothing to do in a layer without rope
        rows = tl.where(spec >= 0, rows, 0)
    live = row < rows
    lane = tl.arange(0, LANES)
    first, second, has_first, has_second = pair_columns(lane, HALF, WIDTH, START, INTERLEAVED)
    if IN_PLACE:
        has_first &= lane < HALF
        has_second &= lane < HALF
    mask_first, mask_second = live[:, None] & has_first[None, :], live[:, None] & has_second[None, :]
    cos_t, sin_t = load_angles(cos, sin, spec, token, live, lane, tokens, HALF, COMPUTE)  # [ROWS, LANES]
    x += layer * x_layer
    out += layer * out_layer
    x_row = (token * x_token + head * x_head)[:, None]
    out_row = (token * out_token + head * out_head)[:, None]
    a = tl.load(x + x_row + first[None, :] * x_dim, mask=mask_first, other=0.0).to(COMPUTE)
    b = tl.load(x + x_row + second[None, :] * x_dim, mask=mask_second, other=0.0).to(COMPUTE)
    kind = out.dtype.element_ty
    tl.store(out + out_row + first[None, :] * out_dim, (a * cos_t - b * sin_t).to(kind), mask=mask_first)
    tl.store(out + out_row + second[None, :] * out_dim, (b * cos_t + a * sin_t).to(kind), mask=mask_second)
