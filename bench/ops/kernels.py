"""The CPU kernels against a copy of the same slots, by family layout, on data that no cache holds.

A share of copy bandwidth counts the bytes that an operation has to move at least. What is reachable counts
its arithmetic too: the time of a copy, or that of its products at this machine's peak, whichever is longer.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from agentkv_kernels.patch.reference import place as place_reference
from agentkv_kernels.registry import pick
from agentkv_kernels.types import Factors, Rope
from torch import Tensor

from agentkv.calibrate import hardware
from bench.ops.layouts import LAYOUTS, MLA, SMOLLM2, Layout, factors, rope
from bench.timing import alternate, ratio

RANK, CHECKED = 32, 61
CUBE = 512
"""Side of the product that the peak is measured with: 3 MiB, cached, and large enough to reach it."""
BOUND = {torch.float32: 1e-5, torch.bfloat16: 4e-3}
"""Error against the fp64 reference, absolute below one, relative above; bf16: half a unit, its rounding."""


class Case(NamedTuple):
    """One placement. rank: of the patch on every slot, 0 for none. step: None, or how much further each token
    moves than the one before it. paged: into rows in random order. in_place: rows stay, positions change."""

    layout: str
    op: str
    turns: bool = True
    rank: int = 0
    step: float | None = None
    paged: bool = False
    in_place: bool = False
    dtype: torch.dtype = torch.float32
    stored: torch.dtype = torch.float32


CASES = (
    *(Case(name, "turned") for name in LAYOUTS),
    *(Case(name, "turned and patched", rank=RANK) for name in LAYOUTS if name != MLA),
    Case(MLA, "turned in place", in_place=True),
    Case(SMOLLM2, "turned, δ per token", step=1.0),
    Case(SMOLLM2, "moved only", turns=False),
    Case(SMOLLM2, "patched (values)", turns=False, rank=RANK),
    Case(SMOLLM2, "turned and patched, factors in bf16", rank=RANK, stored=torch.bfloat16),
    Case(SMOLLM2, "turned and patched, paged", rank=RANK, paged=True),
    Case(SMOLLM2, "turned, bf16", dtype=torch.bfloat16),
    Case(SMOLLM2, "turned and patched, bf16", rank=RANK, dtype=torch.bfloat16, stored=torch.bfloat16),
)


class Call(NamedTuple):
    """Arguments of `place`, and the slots [L, T, H, D] whose bytes it has to move."""

    dst: tuple[Tensor, ...]
    index: Tensor | int
    src: tuple[Tensor, ...]
    ropes: tuple[Rope | None, ...]
    patch: tuple[Factors | None, ...]
    moved: tuple[int, ...]


def measure(rounds: int = 15, threads: int = 2) -> list[dict[str, Any]]:
    """A row per case: ms, the copy's ms beside it, the share of the copy's bandwidth it reaches, and the
    share within reach."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return [_row(case, rounds, threads) for case in CASES]
    finally:
        torch.set_num_threads(before)


def _row(case: Case, rounds: int, threads: int) -> dict[str, Any]:
    layout = LAYOUTS[case.layout]
    call, place = _call(case, layout), pick("place", torch.device("cpu"))
    correct = _check(call, lambda: place(*call[:5]), BOUND[case.dtype])
    others = [(torch.empty_like(call.src[slot]), call.src[slot]) for slot in call.moved]
    cube = torch.randn(CUBE, CUBE)
    arms: dict[str, Callable[[], object]] = {
        "copy": lambda: [to.copy_(of) for to, of in others],
        "kernel": lambda: place(*call[:5]),
        "product": lambda: torch.mm(cube, cube),
    }
    laps = alternate(arms, rounds, warm=2)
    copied = sum(2 * of.nbytes for _, of in others)
    added = sum(f.left.nbytes + f.right.nbytes for f in call.patch if f)
    flop = sum(2 * case.rank * of.numel() for of in call.src)
    copy_ms, product_ms = statistics.median(laps["copy"]), statistics.median(laps["product"])
    needed = (copied + added) / copied
    least_ms = max(needed * copy_ms, flop / (2 * CUBE**3) * product_ms)
    return {
        "layout": case.layout,
        "op": case.op,
        "layers": layout.layers,
        "tokens": layout.tokens,
        "rank": case.rank,
        "threads": threads,
        "ms": round(statistics.median(laps["kernel"]), 2),
        "copy_ms": round(copy_ms, 2),
        "gflops": round(2 * CUBE**3 / product_ms / 1e6),
        "bandwidth_share": round(needed / ratio(laps["kernel"], laps["copy"]), 2),
        "reachable_share": round(needed * copy_ms / least_ms, 2),
        "correct": correct,
        "hardware": hardware(),
    }


def _call(case: Case, layout: Layout) -> Call:
    generator = torch.Generator().manual_seed(0)
    shapes = [(layout.layers, layout.tokens, slot.heads, slot.width) for slot in layout.slots]
    src = tuple(torch.randn(shape, generator=generator).to(case.dtype) for shape in shapes)
    dst = src if case.in_place else tuple(torch.full_like(of, torch.nan) for of in src)
    index: Tensor | int = torch.randperm(layout.tokens, generator=generator) if case.paged else 0
    ropes = tuple(rope(slot, layout, case.step) if case.turns else None for slot in layout.slots)
    patch = tuple(
        factors(slot, layout, case.rank, case.stored) if case.rank else None for slot in layout.slots
    )
    every = range(len(src))
    moved = tuple(i for i in every if not case.in_place or ropes[i] is not None)
    return Call(dst, index, src, ropes, patch, moved)


def _check(call: Call, run: Callable[[], object], bound: float) -> bool:
    """Whether every number is written, those of some tokens as the reference says, and slots that need not
    move are the same bits."""
    tokens = call.src[0].shape[1]
    some = torch.randperm(tokens, generator=torch.Generator().manual_seed(3))[:CHECKED]
    src = tuple(of[:, some] for of in call.src)
    ropes = tuple(_of_tokens(r, some) for r in call.ropes)
    patch = tuple(f and f._replace(left=f.left[some]) for f in call.patch)
    wanted = tuple(torch.empty(of.shape, dtype=torch.float64) for of in src)
    place_reference(wanted, 0, src, ropes, patch)
    still = [i for i in range(len(src)) if i not in call.moved]
    before = [call.dst[i].clone() for i in still]
    run()
    rows = some if isinstance(call.index, int) else call.index[some]
    errors = [
        ((to[:, rows].double() - want).abs() / want.abs().clamp(min=1)).max()
        for to, want in zip(call.dst, wanted, strict=True)
    ]
    same = all(torch.equal(call.dst[i], old) for i, old in zip(still, before, strict=True))
    written = all(bool(to.isfinite().all()) for to in call.dst)
    return same and written and max(float(e) for e in errors) <= bound


def _of_tokens(rope: Rope | None, some: Tensor) -> Rope | None:
    if rope is None or rope.cos.shape[1] == 1:
        return rope
    return rope._replace(cos=rope.cos[:, some], sin=rope.sin[:, some])


def main() -> None:
    """Print the rows."""
    for row in measure():
        print(row)


if __name__ == "__main__":
    main()
