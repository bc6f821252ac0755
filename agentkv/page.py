"""A window as a strip of HTML, for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from agentkv_orchestrator.explain.html import OTHER, Box, colour, legend, strip
from agentkv_orchestrator.plan import Placing

if TYPE_CHECKING:
    from agentkv_orchestrator.window import Placement

    from agentkv.window import Window


def window_html(window: Window) -> str:
    """One box per committed chunk, as wide as its tokens, coloured by what the last commit did with it."""
    ops = window.last_plan.ops if window.last_plan else ()
    placing = {op.uid: op for op in ops if isinstance(op, Placing)}
    boxes = (_box(p, placing.get(p.uid)) for p in window.graph.placements)
    return (
        f'<div style="font:12px sans-serif"><b>{window.graph.tokens}</b> of {window.max_tokens} tokens, '
        f'policy {escape(window.policy.name)} <span style="color:#667">({legend()}, decoded grey)</span>'
        f"{strip(boxes)}</div>"
    )


def _box(placement: Placement, op: Placing | None) -> Box:
    done = f"{op.op}. {op.reason}" if op else "decoded"
    title = f"{placement.chunk.kind}, {placement.chunk.length} tokens, row {placement.row}: {done}"
    return Box(placement.chunk.length, colour(op) if op else OTHER, title)
