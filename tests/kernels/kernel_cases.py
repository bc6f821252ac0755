"""Inputs and comparisons shared by the kernel tests. Odd sizes; every output starts as NaN."""

import math
from collections.abc import Iterable

import torch
from agentkv_kernels.types import Factors, Rope
from torch import Tensor

TOKENS = (1, 3, 17, 33, 130)
WIDTHS = (16, 64, 80, 128)
HEADS = (1, 3, 8)
# Error allowed, absolute below one and relative above. A narrow float gets its one final rounding and no
# more: half a unit in the last place is 2^-11 for fp16 and 2^-8 for bf16.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 5e-4, torch.bfloat16: 4e-3}


def rope_for(
    x: Tensor,
    *,
    style: str = "half",
    band: int | None = None,
    start: int = 0,
    specs: Iterable[int] = (),
    seed: int = 0,
) -> Rope:
    """Random per-token angles for x [L, T, H, D]; `specs` cycles over the layers (default: all spec 0)."""
    layers, tokens, _, width = x.shape
    order = list(specs) or [0]
    spec_of_layer = torch.tensor([order[layer % len(order)] for layer in range(layers)], dtype=torch.int32)
    half = (width if band is None else band) // 2
    generator = torch.Generator().manual_seed(seed)
    count = max(1, max(order) + 1)
    angle = torch.rand(count, tokens, half, generator=generator, dtype=torch.float64) * 2 * math.pi
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    return Rope(angle.cos().to(dtype), angle.sin().to(dtype), spec_of_layer, style, start)


def factors_for(x: Tensor, ranks: Iterable[int], *, seed: int = 1) -> Factors:
    """Random low-rank factors for x [L, T, H, D]; `ranks` cycles over the layers."""
    layers, tokens, heads, width = x.shape
    cycle = list(ranks)
    offsets = torch.zeros(layers + 1, dtype=torch.int32)
    per_layer = torch.tensor([cycle[layer % len(cycle)] for layer in range(layers)])
    offsets[1:] = per_layer.cumsum(0)
    generator = torch.Generator().manual_seed(seed)
    total = int(offsets[-1])
    left = torch.randn(tokens, total, generator=generator, dtype=torch.float64) / max(1, max(cycle)) ** 0.5
    right = torch.randn(total, heads * width, generator=generator, dtype=torch.float64)
    return Factors(left.to(x.dtype), right.to(x.dtype), offsets)


def slot(layers: int, tokens: int, heads: int, width: int, dtype: torch.dtype, *, seed: int = 2) -> Tensor:
    """A random slot [L, T, H, D]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(layers, tokens, heads, width, generator=generator, dtype=torch.float64).to(dtype)


def nan_slot(layers: int, rows: int, heads: int, width: int, dtype: torch.dtype) -> Tensor:
    """An unwritten slot [L, rows, H, D]."""
    return torch.full((layers, rows, heads, width), math.nan, dtype=dtype)


def assert_close(got: Tensor, wanted: Tensor) -> None:
    """Every number of `got` is within its dtype's tolerance of the fp64 `wanted`, relative above one."""
    error = (got.double() - wanted.double()).abs() / wanted.double().abs().clamp(min=1)
    worst = float(error.nan_to_num(math.inf).max()) if error.numel() else 0.0
    assert worst <= TOLERANCE[got.dtype], f"{got.dtype}: error {worst:.2e} > {TOLERANCE[got.dtype]:.0e}"
