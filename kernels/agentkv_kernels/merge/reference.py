"""Merge two partial attention states in fp64, one row at a time, straight from exp and log."""

import math

import torch
from torch import Tensor


def merge(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Return (out [.., D], lse [..]) of the union of both key sets, in fp64."""
    width = out_a.shape[-1]
    out = torch.zeros(lse_a.numel(), width, dtype=torch.float64)
    lse = torch.full((lse_a.numel(),), -math.inf, dtype=torch.float64)
    a_rows = zip(out_a.reshape(-1, width), lse_a.reshape(-1), strict=True)
    b_rows = zip(out_b.reshape(-1, width), lse_b.reshape(-1), strict=True)
    for i, ((a, log_a), (b, log_b)) in enumerate(zip(a_rows, b_rows, strict=True)):
        sides = [(float(log), side.double()) for log, side in ((log_a, a), (log_b, b)) if log != -math.inf]
        if not sides:
            continue
        top = max(log for log, _ in sides)
        total = sum(math.exp(log - top) for log, _ in sides)
        lse[i] = top + math.log(total)
        for log, side in sides:
            out[i] += math.exp(log - top) / total * side
    return out.reshape(out_a.shape), lse.reshape(lse_a.shape)
