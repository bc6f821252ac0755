"""Loops and real conversations through the simulation: what arms take, what evictors are worth, its speed.

    python -m bench.ops.simulate

The conversations are those of bench.traces.bfcl. No model runs: times and KL are predictions of the shipped
cost table. Writes bench/results/simulate.json.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from agentkv_orchestrator.eviction import EVICTORS
from agentkv_orchestrator.simulate import CLAIRVOYANT, Options, Report, simulate
from agentkv_orchestrator.traces import GENERATORS, generate
from transformers import AutoTokenizer

from agentkv.calibrate import hardware
from agentkv.models import embedded
from bench.traces import bfcl
from bench.traces.replayed import replayed

RESULT = Path("bench/results/simulate.json")
BALANCED = "agentkv balanced"
SMALL_STORES = ("recall", "retrieval", "shared", "video")
"""Loops in which chunks come back, for the comparison of evictors."""
SHARES = (0.1, 0.3)
"""Of what a store without a budget would hold."""
LAPS = 5
"""Of which the fastest counts: others work on the machine as well."""
EVENTS = 1_000_000
"""Chunk events of the long trace."""


def loops(turns: int, seed: int) -> list[Report]:
    """Every loop through every arm."""
    return [simulate(generate(name, turns, seed)) for name in GENERATORS]


def conversations(count: int, seed: int) -> list[Report]:
    """Real ones, one after the other in one window, as they are and below a header that always changes."""
    encode = AutoTokenizer.from_pretrained(embedded.ensure()).encode

    def tokens(text: str) -> int:
        return len(encode(text, add_special_tokens=False))

    chosen = bfcl.conversations()[:count]
    return [
        simulate(replayed(chosen, tokens, name, shifted, seed))
        for name, shifted in (("bfcl", False), ("bfcl below a header", True))
    ]


def evictors(turns: int, seed: int) -> list[dict[str, Any]]:
    """Milliseconds of agentkv balanced by evictor, in stores that hold a share of what there is to keep."""
    rows = []
    for name in SMALL_STORES:
        trace = generate(name, turns, seed)
        whole = simulate(trace, Options(store_bytes=1 << 50), [BALANCED]).arms[0]
        for share in SHARES:
            budget = int(share * whole.store_peak_bytes)
            row: dict[str, Any] = {"loop": name, "share": share, "unlimited": whole.ms}
            for evictor in EVICTORS:
                row[evictor] = (
                    simulate(trace, Options(store_bytes=budget, evictor=evictor), [BALANCED]).arms[0].ms
                )
            row[CLAIRVOYANT] = simulate(trace, Options(store_bytes=budget), [CLAIRVOYANT]).arms[0].ms
            rows.append(row)
    return rows


def speed(turns: int, seed: int) -> list[dict[str, Any]]:
    """Processor time of agentkv balanced by loop, and of a trace of a million events that mostly grows."""
    rows = [_timed(name, turns, seed) for name in GENERATORS]
    short = _timed("compaction", turns, seed)
    return [*rows, _timed("compaction", turns * EVENTS // short["events"] + turns, seed)]


def _timed(name: str, turns: int, seed: int) -> dict[str, Any]:
    trace, laps = generate(name, turns, seed), []
    for _ in range(LAPS):
        since = time.process_time()
        report = simulate(trace, None, [BALANCED])
        laps.append(time.process_time() - since)
    seconds = min(laps)
    counted = sum(
        getattr(report.arms[0], f"{kind}_tokens") for kind in ("reused", "rotated", "brought", "recomputed")
    )
    return {
        "loop": name,
        "events": trace.events,
        "seconds": round(seconds, 3),
        "us_per_event": round(seconds / trace.events * 1e6, 1),
        "correct": counted == report.tokens,
    }


def main() -> None:
    """Parse arguments and write all of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--conversations", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    fast = speed(args.turns, args.seed)
    if not all(row["correct"] for row in fast):
        raise SystemExit("tokens were lost: no figure is worth reading")
    found = {
        "turns": args.turns,
        "seed": args.seed,
        "hardware": hardware(),
        "speed": fast,
        "conversations": bfcl.SOURCE,
        "loops": [
            json.loads(report.model_dump_json())
            for report in (*loops(args.turns, args.seed), *conversations(args.conversations, args.seed))
        ],
        "evictors": evictors(2 * args.turns, args.seed),
    }
    args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
