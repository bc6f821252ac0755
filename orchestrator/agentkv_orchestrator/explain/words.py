"""What all formats say alike: names of chunks, rows, prices, and the colours of what is done to a chunk."""

from collections.abc import Iterable, Mapping, Sequence

from ..plan import BaseOp, Load, Op, PlaceCanonical, Plan, Prefill, Rotate

Names = Mapping[int, str]
"""What people call a placement, by uid; others go by chunk id."""

COLOURS = {"reused": "#4c956c", "rotated": "#2c7da0", "patched": "#f4a259", "recomputed": "#bc4b51"}
"""Of a chunk by what `Plan.tokens` counts it as."""

NAMED = 4
"""Chunks that a sentence lists; of more it says how many."""


def treatment(op: BaseOp) -> str:
    """Which of the colours a placing op gets."""
    if isinstance(op, Rotate):
        return "rotated"
    if isinstance(op, Load | PlaceCanonical):
        return "patched"
    return "recomputed" if isinstance(op, Prefill) else "reused"


def headline(plan: Plan) -> str:
    """Tokens by what happens to them, predicted time, KL against the budget, where the window starts."""
    tokens = ", ".join(f"{count} {name}" for name, count in plan.tokens().items() if count)
    over = ", OVER BUDGET" if plan.over_budget else ""
    return (
        f"{plan.policy}: {tokens or 'no tokens'}; {price(plan.predicted_ms, plan.predicted_kl)} "
        f"of {plan.kl_budget:g}{over}; window starts at row {plan.frame.start}"
    )


def took(measured: Mapping[str, float]) -> str:
    """The steps of an execution that took time, the longest first; empty for a plan that did not run."""
    steps = sorted(((ms, step) for step, ms in measured.items() if ms > 0), reverse=True)
    if not steps:
        return ""
    return f"measured {sum(ms for ms, _ in steps):.4g} ms: " + ", ".join(f"{s} {ms:.3g}" for ms, s in steps)


def label(op: Op, names: Names) -> str:
    """What to call the chunk of an op."""
    chunk = op.chunk[:8]
    return chunk if op.uid is None else names.get(op.uid, f"{chunk}#{op.uid}")


def listed(ops: Sequence[Op], names: Names) -> str:
    """The chunks of ops, each once: by name while there are few of them."""
    labels = list(dict.fromkeys(label(op, names) for op in ops))
    return ", ".join(labels) if len(labels) <= NAMED else f"{len(labels)} chunks"


def rows(op: Op) -> str:
    """Where the chunk stands or goes, and how far its rope band turns."""
    if isinstance(op, Rotate):
        there = f"rows {op.from_row}→{op.row}+{op.tokens}"
        delta = op.position - op.from_position
        return there if delta == op.row - op.from_row else f"{there} δ {delta:+d}"
    row = getattr(op, "row", None)
    return f"{op.tokens} tokens" if row is None else f"rows {row}+{op.tokens}"


def price(ms: float, kl: float) -> str:
    return f"{ms:.4g} ms, KL {kl:.3g}"


def total(ops: Iterable[BaseOp]) -> int:
    """Tokens of ops."""
    return sum(op.tokens for op in ops)
