"""Log-sum-exp merge of two partial attention states with plain tensor ops; any device."""

import math

import torch
from torch import Tensor

from agentkv_kernels.merge.checks import check_merge


def merge(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the attention state over the union of two disjoint key sets.

    out_a, out_b: [.., D] normalised attention outputs; lse_a, lse_b: [..] natural-log sums of exp
    of their scores, -inf for a side without keys (its out is ignored, even when it is NaN).
    Arithmetic is fp32, or fp64 when lse_a is. Returns out [.., D] in out_a's dtype and lse [..] in the
    arithmetic dtype. Two empty sides give out 0 and lse -inf. Raises ShapeError.
    """
    check_merge(out_a, lse_a, out_b, lse_b)
    dtype = torch.float64 if lse_a.dtype == torch.float64 else torch.float32
    log_a, log_b = lse_a.to(dtype), lse_b.to(dtype)
    lse = torch.logaddexp(log_a, log_b)  # [..]
    # Two empty sides: exp(-inf - 0) = 0 weights instead of exp(-inf + inf) = NaN.
    base = torch.where(lse == -math.inf, 0.0, lse)
    weight_a = (log_a - base).exp().unsqueeze(-1)
    weight_b = (log_b - base).exp().unsqueeze(-1)
    part_a = torch.where(weight_a == 0, 0.0, out_a.to(dtype) * weight_a)
    part_b = torch.where(weight_b == 0, 0.0, out_b.to(dtype) * weight_b)
    return (part_a + part_b).to(out_a.dtype), lse
