"""Processor time that no tensor takes, as table rows: planning, and the chat model around its window."""

from __future__ import annotations

from typing import Any

Table = tuple[list[str], list[list[str]]]
Rows = list[dict[str, Any]]


def planning(rows: Rows) -> Table:
    """By edit and length of the window: milliseconds to plan, and to check the plan."""
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


def chat(rows: Rows) -> Table:
    """By length of the message list: milliseconds of a turn that are the chat model's own."""
    header = ["messages", "beyond the window", "first turn"]
    return header, [
        [str(row["messages"]), f"**{row['beyond_the_window_ms']:.1f} ms**", f"{row['first_turn_ms']:.0f} ms"]
        for row in rows
    ]
