"""Content-defined cutting and hashing of a million tokens."""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from typing import Any

import numpy as np
from agentkv_orchestrator.chunks import digest
from agentkv_orchestrator.cut import cut

from agentkv.calibrate import hardware

TOKENS = 1_000_000


def measure(rounds: int, threads: int) -> list[dict[str, Any]]:
    """One row: milliseconds to cut and digest a million random tokens; checked to cover them in bounds."""
    ids = np.random.default_rng(0).integers(0, 49152, TOKENS)
    spans = cut(ids)
    tiles = spans[0][0] == 0 and spans[-1][1] == TOKENS and all(a[1] == b[0] for a, b in pairwise(spans))
    correct = tiles and all(32 <= b - a <= 512 for a, b in spans[:-1])
    laps = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        for a, b in cut(ids):
            digest(ids[a:b], "model")
        laps.append((time.perf_counter() - start) * 1e3)
    return [
        {
            "op": "cut_and_hash_1M_tokens",
            "chunks": len(spans),
            "threads": threads,
            "ms": round(statistics.median(laps[1:]), 1),
            "correct": correct,
            "hardware": hardware(),
        }
    ]
