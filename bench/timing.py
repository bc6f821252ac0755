"""Arms in turn, so that a machine that speeds up or slows down does it to all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def alternate(
    arms: dict[str, Callable[[], object]],
    rounds: int,
    warm: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Milliseconds of every arm, ``rounds`` each, in turn, starting with another arm every round.

    clock: seconds; time.process_time where arms do not wait and others use the machine as well.
    """
    names = list(arms)
    laps: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(warm + rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = clock()
            arms[name]()
            if turn >= warm:
                laps[name].append((clock() - start) * 1e3)
    return laps


def ratio(slow: list[float], fast: list[float]) -> float:
    """Median over the rounds of slow / fast, paired by round."""
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))
