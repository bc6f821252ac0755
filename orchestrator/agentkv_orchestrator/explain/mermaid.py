"""A plan as a mermaid flowchart, for documents."""

from itertools import pairwise

from ..plan import Evict, Placing, Plan
from .words import Names, label, price, rows, treatment

_FILLS = {"reused": "#d9f2d9", "rotated": "#dbe8fb", "patched": "#fdf0cc", "recomputed": "#f9d9d6"}
_ENTITIES = {
    ord(c): f"#{name};" for c, name in (("#", "35"), ('"', "quot"), ("<", "lt"), (">", "gt"), ("`", "96"))
}
"""mermaid's own: a label is HTML to some renderers, and markdown between backticks."""


def mermaid(plan: Plan, names: Names) -> str:
    """The new window from left to right, each chunk with what is done to it; what leaves stands apart."""
    lines = ["flowchart LR"]
    placing = sorted((op for op in plan.ops if isinstance(op, Placing)), key=lambda op: op.row)
    for op in placing:
        said = f"{escaped(label(op, names))}<br/>{op.op} {rows(op)}<br/>{price(op.ms, op.kl)}"
        lines.append(f'  u{op.uid}["{said}"]:::{treatment(op)}')
    lines += [f"  u{a.uid} --> u{b.uid}" for a, b in pairwise(placing)]
    for gone in (op for op in plan.ops if isinstance(op, Evict)):
        lines.append(f'  u{gone.uid}(["{escaped(label(gone, names))}<br/>evict"]):::gone')
    lines += [f"  classDef {name} fill:{fill}" for name, fill in _FILLS.items()]
    return "\n".join([*lines, "  classDef gone fill:#eee,stroke-dasharray:4"])


def escaped(name: str) -> str:
    """A name as text of a label, on one line."""
    return " ".join(name.split()).translate(_ENTITIES)
