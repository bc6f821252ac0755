"""What the examples' agents measured, as table rows."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
RUNS = {
    "agents_research": "research agent",
    "agents_screens": "screenshot planner",
    "agents_screens_clock": "screenshot planner, `--clock`",
    "agents_screens_fast": "screenshot planner, `--clock --policy fast`",
    "agents_video": "long recording, 60 s",
    "agents_many": "many agents",
}

Table = tuple[list[str], list[list[str]]]


def runs() -> Table:
    """Time and tokens of agentkv and of a prefix cache, of those of a re-prefill; and what agentkv's prefill
    takes of the prefix cache's."""
    reused = ["tokens computed", "prefix cache"]
    header = ["", "calls", "time", "prefix cache", "prefill / prefix cache's", *reused, "KL", "agreement"]
    return header, [
        _row(title, json.loads((RESULTS / f"{name}.json").read_text())) for name, title in RUNS.items()
    ]


def _row(title: str, found: dict[str, Any]) -> list[str]:
    turns = found["turns"]

    def share(what: str, arm: str) -> str:
        whole = sum(turn[what]["re-prefill"] for turn in turns)
        return f"{sum(turn[what][arm] for turn in turns) / whole:.0%}"

    prompts = sum(turn["prompt_ms"] for turn in turns)
    ours, theirs = (sum(turn["ttft_ms"][arm] for turn in turns) for arm in ("agentkv", "longest prefix"))
    return [
        f"{title}: {found['title']}",
        str(len(turns)),
        f"**{share('ttft_ms', 'agentkv')}**",
        share("ttft_ms", "longest prefix"),
        f"{(ours - prompts) / (theirs - prompts):.0%}",
        f"**{share('computed', 'agentkv')}**",
        share("computed", "longest prefix"),
        f"{fmean(turn['kl'] for turn in turns):.4f}",
        f"{fmean(turn['agreement'] for turn in turns):.2f}",
    ]
