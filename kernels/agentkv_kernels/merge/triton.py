"""Log-sum-exp merge of two partial attention states on a GPU, in one pass over both."""

# mypy: disable-error-code="no-untyped-def"
# A @triton.jit function takes pointers and traced values that Python has no types for.

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from agentkv_kernels.merge.checks import check_merge
from agentkv_kernels.rotate.lanes import COMPUTE

NUMBERS_PER_PROGRAM = 2048


def merge(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Return (out, lse); arguments, dtypes and errors as in `agentkv_kernels.merge.torch.merge`."""
    check_merge(out_a, lse_a, out_b, lse_b)
    dtype = torch.float64 if lse_a.dtype == torch.float64 else torch.float32
    out = torch.empty_like(out_a, memory_format=torch.contiguous_format)
    lse = torch.empty(lse_a.shape, dtype=dtype, device=lse_a.device)
    rows = math.prod(lse_a.shape)
    if not out.numel():
        return out, lse.copy_(torch.logaddexp(lse_a.to(dtype), lse_b.to(dtype)))
    width = out_a.shape[-1]
    options = launch_options(width, dtype)
    _merge_kernel[(triton.cdiv(rows, options["ROWS"]),)](
        out_a.contiguous(),
        lse_a.contiguous(),
        out_b.contiguous(),
        lse_b.contiguous(),
        out,
        lse,
        rows,
        **options,
    )
    return out, lse


def launch_options(width: int, dtype: torch.dtype) -> dict[str, Any]:
    """The compile-time arguments of one launch."""
    block = triton.next_power_of_2(width)
    rows = max(1, NUMBERS_PER_PROGRAM // block)
    return {
        "WIDTH": width, "BLOCK": block, "ROWS": rows, "COMPUTE": COMPUTE[dtype], "enable_fp_fusion": True,
    }  # fmt: skip


@triton.jit
def _merge_kernel(
    out_a, lse_a, out_b, lse_b, out, lse, rows,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    dim = tl.arange(0, BLOCK)
    live = row < rows
    log_a = tl.load(lse_a + row, mask=live, other=0.0).to(COMPUTE)
    log_b = tl.load(lse_b + row, mask=live, other=0.0).to(COMPUTE)
    top = tl.maximum(log_a, log_b)
    base = tl.where(top == -float("inf"), 0.0, top)  # two empty sides: weights 0, not NaN
    weight_a, weight_b = tl.exp(log_a - base), tl.exp(log_b - base)
    total = weight_a + weight_b
    tl.store(lse + row, base + tl.log(total), mask=live)
    share = 1.0 / tl.where(total > 0, total, 1.0)
    at = row[:, None] * WIDTH + dim[None, :]
    mask = live[:, None] & (dim < WIDTH)[None, :]
    # An empty side is not read at all: its output may be NaN, and 0 * NaN is NaN.
    a = tl.load(out_a + at, mask=mask & (weight_a > 0)[:, None], other=0.0).to(COMPUTE)
    b = tl.load(out_b + at, mask=mask & (weight_b > 0)[:, None], other=0.0).to(COMPUTE)
    merged = a * (weight_a * share)[:, None] + b * (weight_b * share)[:, None]
    tl.store(out + at, merged.to(out.dtype.element_ty), mask=mask)
