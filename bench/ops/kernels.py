"""The CPU kernels against a copy of the same slot, on a data set that no cache holds.

One slot of SmolLM2: 30 layers × 2048 tokens × 3 KV heads × 64 dims, 47 MB in fp32.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from agentkv_kernels.patch.reference import place as place_reference
from agentkv_kernels.registry import pick
from agentkv_kernels.rotate.reference import rotate as rotate_reference
from agentkv_kernels.types import Factors, Rope
from torch import Tensor

from agentkv.calibrate import hardware
from bench.timing import alternate, ratio

LAYERS, TOKENS, HEADS, WIDTH, RANK = 30, 2048, 3, 64, 32
CPU = torch.device("cpu")
BOUND = 1e-5  # fp32 against the fp64 reference, on numbers of order one


class Case(NamedTuple):
    """One call on src [L, T, H, D]: what it writes, what that should be, and the bytes it has to move."""

    rank: int
    run: Callable[[Tensor, Tensor], object]
    wanted: Callable[[Tensor, Tensor], object]
    moved: int


def measure(rounds: int = 15, threads: int = 2) -> list[dict[str, Any]]:
    """A row per op: ms, the copy's ms beside it, and the share of the copy's bandwidth it reaches."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        src = torch.randn(LAYERS, TOKENS, HEADS, WIDTH, generator=torch.Generator().manual_seed(0))
        return [_row(name, case, src, rounds, threads) for name, case in _cases(src).items()]
    finally:
        torch.set_num_threads(before)


def _cases(src: Tensor) -> dict[str, Case]:
    half, pairs = _rope(src, "half", 0.0), _rope(src, "interleaved", 0.0)
    spread = _rope(src, "half", 1.0)
    low_rank = _factors(src)
    both_ways = 2 * src.nbytes
    added = low_rank.left.nbytes + low_rank.right.nbytes
    scattered = torch.randperm(TOKENS, generator=torch.Generator().manual_seed(1))
    return {
        "rotate half-split": _rotate(half, both_ways),
        "rotate half-split, δ per token": _rotate(spread, both_ways),
        "rotate interleaved": _rotate(pairs, both_ways),
        "place, moved only": _place(0, None, None, both_ways),
        "place, turned": _place(0, half, None, both_ways),
        "place values": _place(0, None, low_rank, both_ways + added),
        "place keys": _place(0, half, low_rank, both_ways + added),
        "place keys, interleaved": _place(0, pairs, low_rank, both_ways + added),
        "place keys, paged": _place(scattered, half, low_rank, both_ways + added),
    }


def _rotate(rope: Rope, moved: int) -> Case:
    rotate = pick("rotate", CPU)
    return Case(
        0,
        lambda dst, src: rotate(src, rope, out=dst),
        lambda dst, src: rotate_reference(src, rope, dst),
        moved,
    )


def _place(index: Tensor | int, rope: Rope | None, factors: Factors | None, moved: int) -> Case:
    place = pick("place", CPU)
    rest = ((rope,), (factors,))
    return Case(
        RANK if factors else 0,
        lambda dst, src: place((dst,), index, (src,), *rest),
        lambda dst, src: place_reference((dst,), index, (src,), *rest),
        moved,
    )


def _row(name: str, case: Case, src: Tensor, rounds: int, threads: int) -> dict[str, Any]:
    dst, wanted = torch.full_like(src, torch.nan), torch.empty_like(src, dtype=torch.float64)
    case.run(dst, src)
    case.wanted(wanted, src)
    error = (dst.double() - wanted).abs() / wanted.abs().clamp(min=1)
    laps = alternate({"copy": lambda: dst.copy_(src), "kernel": lambda: case.run(dst, src)}, rounds, warm=2)
    share = case.moved / (2 * src.nbytes) / ratio(laps["kernel"], laps["copy"])
    return {
        "op": name,
        "tokens": TOKENS,
        "rank": case.rank,
        "threads": threads,
        "ms": round(statistics.median(laps["kernel"]), 2),
        "copy_ms": round(statistics.median(laps["copy"]), 2),
        "bandwidth_share": round(share, 2),
        "correct": float(error.nan_to_num(torch.inf).max()) <= BOUND,
        "hardware": hardware(),
    }


def _rope(src: Tensor, style: str, step: float) -> Rope:
    """Move by 731 positions, and by `step` more for every token."""
    layers, tokens, _, width = src.shape
    theta = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = (731 + step * torch.arange(tokens, dtype=torch.float64))[None, :, None] * theta  # [1, T, R/2]
    return Rope(angle.cos().float(), angle.sin().float(), torch.zeros(layers, dtype=torch.int32), style)


def _factors(src: Tensor) -> Factors:
    layers, tokens, heads, width = src.shape
    generator = torch.Generator().manual_seed(2)
    left = torch.randn(tokens, layers * RANK, generator=generator) / RANK**0.5
    right = torch.randn(layers * RANK, heads * width, generator=generator)
    return Factors(left, right, torch.arange(layers + 1, dtype=torch.int32) * RANK)


def main() -> None:
    """Print the rows."""
    for row in measure():
        print(row)


if __name__ == "__main__":
    main()
