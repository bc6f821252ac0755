"""The one tolerance table. A test takes its bound from here and never widens it."""

from __future__ import annotations

import torch

LOGITS = {torch.float64: 1e-9, torch.float32: 1e-3}
"""Largest absolute difference of logits between an edited and a freshly prefilled window."""

KV = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
"""Largest difference of cached numbers, relative to the largest number of the reference."""


def kv_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Largest difference relative to the largest number of `want`; NaN anywhere gives infinity."""
    error = ((got.double() - want.double()).abs().max() / want.double().abs().max()).item()
    return error if error == error else float("inf")
