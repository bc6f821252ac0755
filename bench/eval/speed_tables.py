"""Processor time that no tensor takes, as table rows: planning, and the chat model around its window."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"

Table = tuple[list[str], list[list[str]]]


def _rows(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text())
    return rows


def planning() -> Table:
    """By edit and length of the window: milliseconds to plan, and to check the plan."""
    rows = _rows("planning")
    sizes = sorted({row["chunks"] for row in rows})
    by = {(row["op"], row["chunks"]): row for row in rows}
    header = ["edit", *(f"{what}, {size} chunks" for what in ("plan", "check") for size in sizes)]
    return header, [
        [
            op.replace("_", " "),
            *(f"{by[op, size][f'{what}_ms']:.1f} ms" for what in ("plan", "check") for size in sizes),
        ]
        for op in dict.fromkeys(row["op"] for row in rows)
    ]


def chat() -> Table:
    """By length of the message list: milliseconds of a turn that are the chat model's own."""
    header = ["messages", "beyond the window", "first turn"]
    return header, [
        [str(row["messages"]), f"**{row['beyond_the_window_ms']:.1f} ms**", f"{row['first_turn_ms']:.0f} ms"]
        for row in _rows("chat")
    ]
