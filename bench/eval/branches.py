"""What a fork costs until and after its first write, and what a clean view changes and costs to take back.

    python -m bench.eval.branches --windows 24 --threads 1

The windows of `bench.eval.disposability`. Every finished window is written; a run that was stopped goes on.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from agentkv import Window
from bench.eval.agent_windows import Case, gate, run

ROUNDS = 2
NOTE = 32
"""Tokens that a branch appends."""


def main() -> None:
    """Parse arguments, then every window."""
    run(measured, __doc__ or "", Path("bench/results/branches.json"))


def measured(case: Case) -> dict[str, Any]:
    """Fork and clean view of one window; the window is left as it was."""
    gate(case)
    return {"fork": fork(case.window), "clean": clean(case)}


def fork(window: Window) -> dict[str, float]:
    """Milliseconds and bytes of a fork, of its first commit, and of the same commit in a window that nobody
    shares; the arms take turns."""
    draw, vocabulary = np.random.default_rng(0), window.engine.vocabulary
    laps: dict[str, list[float]] = {"fork": [], "first": [], "alone": [], "copy": []}
    for _ in range(ROUNDS):
        note = draw.integers(0, vocabulary, NOTE, dtype=np.int64)
        twin = lap(laps["fork"], window.fork)
        if twin.kv.slots[0].data_ptr() != window.kv.slots[0].data_ptr():
            raise SystemExit("a fork that was not written to has rows of its own; nothing measured")
        twin.append_ids(note)
        lap(laps["first"], twin.commit)
        if twin.kv.slots[0].data_ptr() == window.kv.slots[0].data_ptr():
            raise SystemExit("a branch wrote to shared rows; nothing measured")
        twin.append_ids(draw.integers(0, vocabulary, NOTE, dtype=np.int64))
        lap(laps["alone"], twin.commit)  # its rows are its own by now
        twin.close()
        other = window.fork()
        lap(laps["copy"], other.kv.own)
        other.close()
    found = {f"{name}_ms": statistics.median(ms) for name, ms in laps.items()}
    return found | {"live_bytes": float(window.kv.nbytes)}


def clean(case: Case) -> dict[str, float]:
    """KL over the answer and milliseconds: the document that is asked about shown clean, with its canonical
    formed on the way and stored already, and each time taken back."""
    twin = case.window.fork()
    found: dict[str, float] = {}
    for key in tuple(twin.engine.store.keys()):
        twin.engine.store.drop(key)  # so that the first view has to form its canonical
    for name in ("formed", "stored"):
        laps: list[float] = []
        twin.clean_view(case.documents[case.about])
        lap(laps, twin.commit)
        found[f"{name}_kl"] = case.answered(twin)
        lap(laps, twin.undo)
        found[f"{name}_undone_kl"] = case.answered(twin)
        found[f"{name}_ms"], found[f"{name}_undo_ms"] = laps
    twin.close()
    return found


def lap(laps: list[float], work: Callable[[], Any]) -> Any:
    """What ``work`` returns; its milliseconds are added to ``laps``."""
    since = time.perf_counter()
    done = work()
    laps.append((time.perf_counter() - since) * 1e3)
    return done


if __name__ == "__main__":
    main()
