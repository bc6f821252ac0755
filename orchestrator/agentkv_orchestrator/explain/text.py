"""A plan as text: the headline, where the time goes and why, then every op with what else there was."""

from collections.abc import Iterator, Mapping
from itertools import groupby

from ..plan import Keep, Op, Plan
from .account import told
from .words import Names, headline, label, price, rows, took, total

FOLDED = 4
"""So many neighbours of which nothing is to be said are one line."""


def text(plan: Plan, names: Names, measured: Mapping[str, float]) -> str:
    """See `explain`."""
    lines = [headline(plan), *(f"  {line}" for line in told(plan, names))]
    lines += [f"  {line}" for line in [took(measured)] if line]
    width = max((len(label(op, names)) for op in plan.ops), default=0)
    return "\n".join([*lines, *_ops(plan, names, width)])


def _ops(plan: Plan, names: Names, width: int) -> Iterator[str]:
    for quiet, group in groupby(plan.ops, key=_quiet):
        ops = list(group)
        if quiet and len(ops) >= FOLDED:
            first, last = label(ops[0], names), label(ops[-1], names)
            where = f"rows {getattr(ops[0], 'row', 0)}+{total(ops)}"
            yield f"  {ops[0].op:<15} {len(ops)} chunks, {first} to {last}, {where}: {quiet}"
            continue
        for op in ops:
            yield from _op(op, names, width)


def _quiet(op: Op) -> str:
    """The reason of an op that changes nothing, costs nothing and left no choice; empty for any other."""
    return op.reason if isinstance(op, Keep) and not op.kl and not op.alternatives else ""


def _op(op: Op, names: Names, width: int) -> Iterator[str]:
    name = f"{label(op, names):<{width}}"
    yield f"  {op.op:<15} {name} {rows(op):<16} {price(op.ms, op.kl):<22} {op.reason}"
    for other in op.alternatives:
        reason = f" ({other.reason})" if other.reason else ""
        yield f"  {'':<15} not {other.name}{reason} {price(other.ms, other.kl)}: {other.why_not}"
