"""Why each op was chosen: as text for people, JSON for programs, mermaid for documents."""

from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Literal

from .errors import PlanError
from .plan import BaseOp, Evict, Load, Op, PlaceCanonical, Placing, Plan, Prefill, Rotate

Format = Literal["text", "json", "mermaid"]


Names = Mapping[int, str]
"""What people call a placement, by uid; others go by chunk id."""


def explain(plan: Plan, fmt: Format = "text", names: Names = MappingProxyType({})) -> str:
    """Write a plan out. names: what to call placements in text and mermaid.

    Raises PlanError for an unknown format.
    """
    if fmt == "text":
        return _text(plan, names)
    if fmt == "json":
        return plan.to_json(indent=2)
    if fmt == "mermaid":
        return _mermaid(plan, names)
    raise PlanError(f"format {fmt!r}", "text, json or mermaid", "pick one of them")


def _text(plan: Plan, names: Names) -> str:
    lines = [_headline(plan)]
    width = max((len(_label(op, names)) for op in plan.ops), default=0)
    for op in plan.ops:
        label = f"{_label(op, names):<{width}}"
        lines.append(f"  {op.op:<15} {label} {_rows(op):<16} {_price(op.ms, op.kl):<22} {op.reason}")
        lines += [
            f"  {'':<15} not {other.name} ({_price(other.ms, other.kl)}): {other.why_not}"
            for other in op.alternatives
        ]
    return "\n".join(lines)


def _headline(plan: Plan) -> str:
    tokens = ", ".join(f"{count} {name}" for name, count in plan.tokens().items() if count)
    over = ", OVER BUDGET" if plan.over_budget else ""
    return (
        f"{plan.policy}: {tokens or 'no tokens'}; {_price(plan.predicted_ms, plan.predicted_kl)} "
        f"of {plan.kl_budget:g}{over}; window starts at row {plan.frame.start}"
    )


def _mermaid(plan: Plan, names: Names) -> str:
    """The new window from left to right, each chunk with what is done to it; what leaves stands apart."""
    lines = ["flowchart LR"]
    placing = sorted((op for op in plan.ops if isinstance(op, Placing)), key=lambda op: op.row)
    for op in placing:
        label = _label(op, names).replace('"', "'")
        lines.append(
            f'  u{op.uid}["{label}<br/>{op.op} {_rows(op)}<br/>{_price(op.ms, op.kl)}"]:::{_colour(op)}'
        )
    lines += [f"  u{a.uid} --> u{b.uid}" for a, b in pairwise(placing)]
    for gone in (op for op in plan.ops if isinstance(op, Evict)):
        label = _label(gone, names).replace('"', "'")
        lines.append(f'  u{gone.uid}(["{label}<br/>evict"]):::gone')
    lines += [
        "  classDef reused fill:#d9f2d9",
        "  classDef moved fill:#dbe8fb",
        "  classDef stored fill:#fdf0cc",
        "  classDef computed fill:#f9d9d6",
        "  classDef gone fill:#eee,stroke-dasharray:4",
    ]
    return "\n".join(lines)


def _colour(op: BaseOp) -> str:
    if isinstance(op, Rotate):
        return "moved"
    if isinstance(op, Load | PlaceCanonical):
        return "stored"
    return "computed" if isinstance(op, Prefill) else "reused"


def _label(op: Op, names: Names) -> str:
    chunk = op.chunk[:8]
    return chunk if op.uid is None else names.get(op.uid, f"{chunk}#{op.uid}")


def _rows(op: Op) -> str:
    if isinstance(op, Rotate):
        there = f"rows {op.from_row}→{op.row}+{op.tokens}"
        delta = op.position - op.from_position
        return there if delta == op.row - op.from_row else f"{there} δ {delta:+d}"
    row = getattr(op, "row", None)
    return f"{op.tokens} tokens" if row is None else f"rows {row}+{op.tokens}"


def _price(ms: float, kl: float) -> str:
    return f"{ms:.4g} ms, KL {kl:.3g}"
