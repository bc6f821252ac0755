"""A window as a strip of HTML, for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentkv.window import Window

COLOURS = {
    "keep": "#4c956c",
    "rotate": "#2c7da0",
    "load": "#f4a259",
    "place_canonical": "#f4a259",
    "prefill": "#bc4b51",
}
"""What happened to a chunk in the last commit: reused, rotated, brought from the store, recomputed."""


def window_html(window: Window) -> str:
    """One box per committed chunk, as wide as its tokens, coloured by what the last commit did with it."""
    ops = {}
    if window.last_plan is not None:
        ops = {op.uid: op for op in window.last_plan.ops if op.op in COLOURS}
    boxes = []
    for placement in window.graph.placements:
        op = ops.get(placement.uid)
        name = op.op if op else "decoded"
        title = f"{placement.chunk.kind}, {placement.chunk.length} tokens, row {placement.row}: {name}"
        reason = f". {op.reason}" if op else ""
        boxes.append(
            f'<div title="{escape(title + reason)}" style="flex:{placement.chunk.length} 1 0;min-width:2px;'
            f'background:{COLOURS.get(name, "#8d99ae")};border-right:1px solid #fff"></div>'
        )
    legend = "reused green, rotated blue, from the store orange, recomputed red, decoded grey"
    return (
        f'<div style="font:12px sans-serif"><b>{window.graph.tokens}</b> of {window.max_tokens} tokens, '
        f"policy "
        f'{escape(window.policy.name)} <span style="color:#667">({legend})</span>'
        f'<div style="display:flex;height:24px;margin-top:4px">{"".join(boxes)}</div></div>'
    )
