"""What the simulation and the placement run wrote, as table rows."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentkv.metrics import interval

RESULTS = Path(__file__).parents[1] / "results"
Table = tuple[list[str], list[list[str]]]


def loops() -> Table:
    """Seconds by loop and arm, each with the share of tokens that were not computed again."""
    reports = _load("simulate")["loops"]
    arms = [arm["arm"] for arm in reports[0]["arms"]]
    rows = []
    for report in reports:
        cells = [f"{arm['ms'] / 1e3:.1f} s, {arm['hit_rate']:.0%}" for arm in report["arms"]]
        rows.append(
            [report["trace"], str(report["chunk_events"]), *cells, f"{report['bound_ms'] / 1e3:.1f} s"]
        )
    return ["loop", "events", *arms, "bound"], rows


def loops_kl() -> Table:
    """Predicted KL of a turn, mean and largest, of the arms that have any; and the regret of balanced."""
    reports = _load("simulate")["loops"]
    inexact = ("llama.cpp", "agentkv balanced", "agentkv fast")
    rows = []
    for report in reports:
        by = {arm["arm"]: arm for arm in report["arms"]}
        cells = [f"{by[arm]['kl_mean']:.3f}, {by[arm]['kl_max']:.3f}" for arm in inexact]
        rows.append([report["trace"], *cells, f"{by['agentkv balanced']['regret']:+.1%}"])
    return ["loop", *inexact, "regret of balanced"], rows


def evictors() -> Table:
    """Seconds of agentkv balanced by evictor in a small store."""
    found = _load("simulate")["evictors"]
    names = [name for name in found[0] if name not in ("loop", "share")]
    return ["loop", "store", *names], [
        [row["loop"], f"{row['share']:.0%}", *(f"{row[name] / 1e3:.1f}" for name in names)] for row in found
    ]


def speed() -> Table:
    """How long a simulation of agentkv balanced takes."""
    return ["loop", "chunk events", "seconds", "µs an event"], [
        [row["loop"], str(row["events"]), f"{row['seconds']:.1f}", f"{row['us_per_event']:.0f}"]
        for row in _load("simulate")["speed"]
    ]


def placement() -> Table:
    """Measured milliseconds of a turn by loop and order, against arrival order, and both KLs."""
    state = _load("placement")
    header = [
        "loop",
        "turns",
        "order",
        "commit",
        "settle",
        "both, against arrival",
        "predicted KL",
        "measured KL",
        "tokens computed",
    ]
    rows = []
    for loop, played in state["loops"].items():
        arms = list(dict.fromkeys(row["arm"] for row in played))
        by = {arm: [row for row in played if row["arm"] == arm] for arm in arms}
        base = _total(by[arms[0]])
        for arm in arms:
            own = by[arm]
            kl = interval([row["kl"] for row in own if "kl" in row])
            rows.append(
                [
                    loop,
                    str(len(own)),
                    arm,
                    f"{_mean(own, 'commit_ms'):.0f} ms",
                    f"{_mean(own, 'settle_ms'):.0f} ms",
                    f"{_total(own) / base - 1:+.0%}",
                    f"{_mean(own, 'predicted_kl'):.4f}",
                    f"{kl[0]:.4f} [{kl[1]:.4f}, {kl[2]:.4f}]",
                    f"{_mean(own, 'computed'):.0f}",
                ]
            )
    return header, rows


def placement_run() -> str:
    """How the placement table was measured."""
    state = _load("placement")
    return (
        f"{state['hardware']}, {state['threads']} thread, {state['model']}, documents of "
        f"{state['document_tokens']} tokens, KL budget {state['kl_budget']}\n"
    )


def _total(rows: Sequence[dict[str, Any]]) -> float:
    return sum(row["commit_ms"] + row["settle_ms"] for row in rows)


def _mean(rows: Sequence[dict[str, Any]], name: str) -> float:
    return sum(row[name] for row in rows) / len(rows)


def _load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found
