"""What ops take on this machine: milliseconds, and bytes."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from agentkv_orchestrator.cost import Bytes, Time, Timed

from agentkv.cache import Run, WindowKV
from agentkv.calibrate.arms import RANKS
from agentkv.engine import Engine
from agentkv.kv import KVBlock
from agentkv.patches import Budget, Patch, decompose

ROWS = 4096
"""Length of the window that ops are timed in; shorter for a model that was built for less."""
QUESTION = 24
"""Tokens of a short prefill."""
Point = tuple[int, int, float]
"""Tokens, rank, and what was measured."""


def times(engine: Engine) -> dict[Timed, Time]:
    """Milliseconds per op over the engine's cache, all layers and slots; of patches also by rank.

    load and place_canonical do what rotate does, orbit and removal patches what a patch does, form_canonical
    what a prefill does: they share its figures.
    """
    backend, rows = engine.backend, min(ROWS, engine.layout.max_positions)
    kv = _filled(engine, rows)
    read, turn, patched, form = list[Point](), list[Point](), list[Point](), list[Point]()
    for n in (rows // 64, rows // 16, rows // 4):
        block, ids = backend.read(kv, 0, n), _ids(engine, n)
        canonical = backend.canonical(ids)
        read.append((n, 0, _ms(engine, partial(backend.read, kv, 0, n))))
        turn.append((n, 0, _ms(engine, partial(backend.place, kv, rows // 2, block))))
        form.append((n, 0, _ms(engine, partial(backend.form, block, canonical), 3)))
        for rank, patch in _patches(engine, block, canonical):
            both = _ms(engine, partial(backend.place, kv, rows // 2, canonical, patch))
            patched.append((n, rank, max(both - turn[-1][2], 0.0)))
    moved, applied, prefill = _affine(turn), _affine(patched), _prefill(engine, rows)
    return {
        "rotate": moved,
        "load": moved,
        "place_canonical": moved,
        "apply_patch": applied,
        "apply_orbit": applied,
        "apply_removal": applied,
        "stash": _affine(read),
        "prefill": prefill,
        "form_canonical": prefill,
        "form_patch": _affine(form),
    }


def sizes(engine: Engine) -> dict[Timed, Bytes]:
    """Bytes of KV or patch that an op reads from the store, puts there, or writes to rows."""
    backend, found = engine.backend, list[Point]()
    kv = _filled(engine, ROWS // 16)
    for n in (ROWS // 64, ROWS // 16):
        block, canonical = backend.read(kv, 0, n), backend.canonical(_ids(engine, n))
        found += [(n, rank, patch.nbytes) for rank, patch in _patches(engine, block, canonical)]
    n, rank, nbytes = np.array(found).T
    per_rank, per_token_rank = nonnegative(np.stack([rank, n * rank], 1), nbytes)
    page = Bytes(per_token=kv.row_bytes)
    patch = Bytes(per_rank=round(per_rank, 3), per_token_rank=round(per_token_rank, 3))
    patches: tuple[Timed, ...] = ("apply_patch", "apply_orbit", "apply_removal", "form_patch")
    return {op: patch if op in patches else page for op in get_args(Timed)}


def _patches(engine: Engine, block: KVBlock, canonical: KVBlock) -> Iterator[tuple[int, Patch]]:
    """Patches of every rank that is measured, as the engine stores them."""
    recipe, spectrum = engine.recipe, decompose(engine.backend.deficit(block, canonical))
    for rank in RANKS:
        yield rank, spectrum.patch(Budget(rank=rank), recipe.scheme, dtype=recipe.dtype)


def _prefill(engine: Engine, size: int) -> Time:
    """Short and long ones, behind nothing and behind much."""
    kv, long, longest, points = _filled(engine, size), size // 32, size // 8, []
    for tokens, rows in (
        *((QUESTION, front) for front in (0, size // 4, size // 2)),
        *((long, front) for front in (0, size // 2)),
        *((longest, front) for front in (0, size // 4)),
    ):
        kv.end, run = rows, [Run(rows, _ids(engine, tokens))]
        points.append((tokens, rows, _ms(engine, partial(engine.backend.prefill, kv, run, 1), 3)))
    design = np.array([[1.0, n, n * (rows + n / 2)] for n, rows, _ in points])
    base, per_token, per_token_row = nonnegative(design, np.array([ms for *_, ms in points]))
    return Time(base=round(base, 4), per_token=round(per_token, 6), per_token_row=round(per_token_row, 8))


def _filled(engine: Engine, rows: int) -> WindowKV:
    """Rows of random numbers: what was never written may be NaN, and a forward over NaN is an error."""
    kv = engine.backend.new_kv(rows)
    kv.end = rows
    for slot in kv.slots:
        slot.normal_()
    return kv


def _ids(engine: Engine, count: int) -> np.ndarray:
    """Token ids that any model has; what they are does not change the time."""
    return np.arange(3, 3 + count, dtype=np.int64) % engine.vocabulary


def _ms(engine: Engine, run: Callable[[], object], rounds: int = 5) -> float:
    """Median over the rounds, after one that does not count."""
    run()
    laps = []
    for _ in range(rounds):
        _wait(engine)
        start = time.perf_counter()
        run()
        _wait(engine)
        laps.append((time.perf_counter() - start) * 1e3)
    return statistics.median(laps)


def _wait(engine: Engine) -> None:
    if engine.loaded.device.type == "cuda":  # launches return before the work is done
        torch.cuda.synchronize(engine.loaded.device)


def _affine(points: Sequence[Point]) -> Time:
    """base + per_token · tokens, and with a rank both by rank as well."""
    n, rank, ms = np.array(points, dtype=float).T
    base, per_token, per_rank, per_token_rank = nonnegative(np.stack([n**0, n, rank, n * rank], 1), ms)
    return Time(
        base=round(base, 4),
        per_token=round(per_token, 6),
        per_rank=round(per_rank, 6),
        per_token_rank=round(per_token_rank, 8),
    )


def nonnegative(design: np.ndarray, target: np.ndarray) -> list[float]:
    """Coefficients ≥ 0 of the columns of design [n, k] with the least relative error against target [n].

    Relative, since a question matters as much as a document. Columns that would get a negative one are left
    out, the worst first.
    """
    weight = 1 / np.maximum(target, 1e-9)
    kept = [k for k in range(design.shape[1]) if design[:, k].any()]
    found = np.zeros(design.shape[1])
    while kept:
        fit, *_ = np.linalg.lstsq(design[:, kept] * weight[:, None], target * weight, rcond=None)
        if fit.min() >= 0:
            found[kept] = fit
            break
        kept.pop(int((fit * np.abs(design[:, kept]).max(0)).argmin()))
    return [float(x) for x in found]


def hardware() -> str:
    """CPU, cores and software versions in one line."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line
        ]
        name = models[0] if models else name
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ", no GPU"
    return f"{name}, {os.cpu_count()} cores{gpu}, torch {torch.__version__}"
