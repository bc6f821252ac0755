"""What a cost table is made of: times measured on this machine, and errors as their ninth deciles."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from agentkv_orchestrator.cost import KL, Point, Time, Timed

from agentkv.cache import Run, WindowKV
from agentkv.engine import Engine

ROWS = 4096
"""Length of the window that ops are timed in; shorter for a model that was built for less."""
QUESTION = 24
"""Tokens of a short prefill."""
BOUND = 0.9
"""Nine of ten windows stayed below these errors: a budget held against means would be broken by half."""


@dataclass(frozen=True)
class Stale:
    """KL of windows, nats, one each. share: of the window's tokens that left or came. affected: share of the
    tokens that were stale then."""

    share: float
    kl: Sequence[float]
    affected: float = 1.0

    def point(self) -> Point:
        return Point(share=round(self.share, 4), kl=bound(self.kl), affected=round(self.affected, 4))


@dataclass(frozen=True)
class Errors:
    """KL of windows by method, nats; the fields are those of `agentkv_orchestrator.cost.KL`, which says what
    they stand for. removal: of the first slide, with removal patches."""

    slide: Sequence[Stale]
    hole: Sequence[Stale]
    inserted: Sequence[Stale]
    permuted: Sequence[float]
    canonical: Sequence[float]
    patch: Sequence[float]
    orbit: Sequence[float]
    removal: Sequence[float]

    def table(self) -> KL:
        """What the planner reads."""
        stale = bound(self.slide[0].kl)
        return KL(
            slide=tuple(s.point() for s in self.slide),
            hole=tuple(s.point() for s in self.hole),
            inserted=tuple(s.point() for s in self.inserted),
            permuted=bound(self.permuted),
            canonical=bound(self.canonical),
            patch=bound(self.patch),
            orbit=bound(self.orbit),
            # Where nothing is stale a removal patch mends nothing.
            removal=min(1.0, round(bound(self.removal) / stale, 4)) if stale else 1.0,
        )


def bound(samples: Sequence[float]) -> float:
    """What nine of ten stayed below."""
    return round(float(np.quantile(samples, BOUND)), 7)


def times(engine: Engine) -> dict[Timed, Time]:
    """Milliseconds per op over the engine's cache, all layers and slots.

    load and place_canonical do what rotate does, orbit and removal patches what a patch does, form_canonical
    what a prefill does: they share its figures.
    """
    backend, rows = engine.backend, min(ROWS, engine.layout.max_positions)
    kv = _filled(engine, rows)
    read, turn, patched, form = [], [], [], []
    for n in (rows // 64, rows // 16, rows // 4):
        block, ids = backend.read(kv, 0, n), _ids(engine, n)
        canonical = backend.canonical(ids)
        patch = backend.form(block, canonical)
        read.append((n, _ms(engine, partial(backend.read, kv, 0, n))))
        turn.append((n, _ms(engine, partial(backend.place, kv, rows // 2, block))))
        both = _ms(engine, partial(backend.place, kv, rows // 2, canonical, patch))
        patched.append((n, max(both - turn[-1][1], 0.0)))
        form.append((n, _ms(engine, partial(backend.form, block, canonical), 3)))
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
    # Relative errors count: a question matters as much as a document.
    weight = 1 / np.array([ms for *_, ms in points])
    fit, *_ = np.linalg.lstsq(design * weight[:, None], np.ones(len(points)), rcond=None)
    base, per_token, per_token_row = (round(max(float(x), 0.0), 6) for x in fit)
    return Time(base=base, per_token=per_token, per_token_row=per_token_row)


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


def _affine(points: Sequence[tuple[int, float]]) -> Time:
    """base + per_token · tokens by least squares, neither below 0."""
    tokens, ms = np.array(points).T
    slope, base = np.polyfit(tokens, ms, 1)
    return Time(base=round(max(float(base), 0.0), 4), per_token=round(max(float(slope), 0.0), 6))


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
