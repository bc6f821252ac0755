"""What naming a context takes. Needs no torch."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
from agentkv_orchestrator.chunks import digest
from agentkv_orchestrator.lineage import Lineage
from xxhash import xxh3_128_hexdigest

from bench.timing import alternate


def identity(links: int = 20_000, rounds: int = 5) -> list[dict[str, Any]]:
    """Microseconds a link of a context, as it is and with xxh3 in the hash's place."""
    names = [digest(np.array([i]), "m") for i in range(links)]

    def fast() -> None:
        key, parent = "", None
        for name in names:
            parent = object.__new__(Lineage)
            parent.key = key = xxh3_128_hexdigest((key + name).encode())

    arms: dict[str, Callable[[], object]] = {"BLAKE2b": lambda: Lineage.of(names), "xxh3": fast}
    laps = alternate(arms, rounds)
    correct = len({Lineage.of(names[:n]).key for n in range(50)}) == 50
    return [
        {
            "part": "identity",
            "hash": arm,
            "link_us": round(statistics.median(times) * 1e3 / links, 3),
            "correct": correct,
        }
        for arm, times in laps.items()
    ]
