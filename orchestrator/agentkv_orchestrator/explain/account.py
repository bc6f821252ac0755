"""Where a plan's time goes and which part of the edit is the reason: what is asked of a slow turn first."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from ..plan import (
    NAMES,
    Alternative,
    Evict,
    Keep,
    Op,
    Placing,
    Plan,
    Prefill,
    Rotate,
    Stash,
)
from .words import Names, listed, total


class Item(NamedTuple):
    """Ops that take time, or leave an error, for one reason."""

    what: str
    """What they are, of which chunks."""
    why: str
    ms: float
    share: float
    """Of the predicted time of the plan, 0 to 1."""
    ops: tuple[Op, ...]


def account(plan: Plan, names: Names) -> list[Item]:
    """All ops that take time, in groups of one reason each, the most expensive first."""
    groups: dict[tuple[str, str], list[Op]] = {}
    for op in plan.ops:
        if op.ms > 0:
            groups.setdefault(_group(op, plan), []).append(op)
    items = [_item(verb, reason, ops, plan, names) for (verb, reason), ops in groups.items()]
    return sorted(items, key=lambda item: -item.ms)


def edit(plan: Plan, names: Names) -> list[str]:
    """What was asked for, as far as a plan shows it: what left, what came, what changed places."""
    placing = [op for op in plan.ops if isinstance(op, Placing)]
    stashed = {op.uid for op in plan.ops if isinstance(op, Stash)}
    came = [op for op in placing if op.uid not in stashed and not _stood(op)]
    came.sort(key=lambda op: op.row)
    left = [op for op in plan.ops if isinstance(op, Evict)]
    stood = sorted(
        (op.row, op.from_row if isinstance(op, Rotate) else op.row, op.uid)
        for op in placing
        if isinstance(op, Keep | Rotate)
    )
    turned = any(a[1] > b[1] for a, b in pairwise(stood))
    said = [f"left: {listed(left, names)}"] * bool(left)
    said += [f"came: {listed(came, names)}"] * bool(came)
    return said + ["chunks changed places"] * turned


def _stood(op: Placing) -> bool:
    """Whether the chunk was in the window before: it stands, or could have."""
    live = (NAMES[Keep], NAMES[Rotate])
    return isinstance(op, Keep | Rotate) or any(o.name.startswith(live) for o in op.alternatives)


def errors(plan: Plan, names: Names) -> list[Item]:
    """All ops that leave an error, in groups of one reason each, the largest predicted KL first; `share` is
    the group's share of that."""
    groups: dict[tuple[str, str], list[Op]] = {}
    for op in plan.ops:
        if op.kl > 0:
            groups.setdefault((op.op.replace("_", " "), _alike(op)), []).append(op)
    items, whole = [], sum(op.kl for op in plan.ops)
    for (verb, _), ops in groups.items():
        share = sum(op.kl for op in ops) / whole
        what = f"{verb} of {listed(ops, names)} ({total(ops)} tokens)"
        why = "inherited from what is off in front" if isinstance(ops[0], Prefill) else _said(ops)
        items.append(Item(what, why, sum(op.ms for op in ops), share, tuple(ops)))
    return sorted(items, key=lambda item: -item.share)


def _group(op: Op, plan: Plan) -> tuple[str, str]:
    if isinstance(op, Prefill):
        return "prefill", _reuse(op, plan)
    return op.op.replace("_", " "), "moved" if isinstance(op, Rotate) else _alike(op)


def _alike(op: Op) -> str:
    """The reason without its numbers: chunks further behind have more in front, and the same happened."""
    return re.sub(r"\b\d+ (chunk|row)s?\b", r"\1s", op.reason)


def _said(ops: Sequence[Op]) -> str:
    """The reason of ops that are alike; with its numbers where they agree."""
    return ops[0].reason if len({op.reason for op in ops}) == 1 else _alike(ops[0])


def _reuse(op: Prefill, plan: Plan) -> str:
    """Why a chunk was not reused, in one of a few words."""
    others = [other for other in op.alternatives if not _computes(other)]
    if not others:
        return "nothing"
    return "exact" if plan.policy == "exact" else "budget"


def _item(verb: str, reason: str, ops: Sequence[Op], plan: Plan, names: Names) -> Item:
    ms = round(sum(op.ms for op in ops), 4)
    why: Callable[[], str] = {
        "nothing": lambda: "nothing is held for them" if len(ops) > 1 else "nothing is held for it",
        "exact": lambda: f"exact computes all behind the prefix that stands; {_changed(ops)}",
        "budget": lambda: f"{_changed(ops)}; {_over(ops, plan)}",
        "moved": lambda: _moves(ops),
    }.get(reason, lambda: _said(ops))
    what = f"{verb} of {listed(ops, names)} ({total(ops)} tokens)"
    return Item(what, why(), ms, ms / sum(op.ms for op in plan.ops), tuple(ops))


def _closest(op: Op) -> Alternative:
    """The way without a forward that is predicted to be least off."""
    return min((o for o in op.alternatives if not _computes(o)), key=lambda o: (o.kl, o.ms))


def _changed(ops: Sequence[Op]) -> str:
    """What reusing them would have meant: the closest way of most of them."""
    closest = Counter((_closest(op).name, _closest(op).reason) for op in ops)
    (name, reason), _ = closest.most_common(1)[0]
    return f"closest was {name}" + f" ({reason})" * bool(reason)


def _over(ops: Sequence[Op], plan: Plan) -> str:
    """What the window's KL would be, had all of them been reused in the way that is least off."""
    kl = plan.predicted_kl + sum(_closest(op).kl - op.kl for op in ops)
    if kl > plan.kl_budget:
        return f"reused so, the window's KL would be {kl:.3g}, {kl - plan.kl_budget:.2g} over the budget"
    return "computing was cheaper than what fits the budget"


def _moves(ops: Sequence[Op]) -> str:
    by = sorted({op.position - op.from_position for op in ops if isinstance(op, Rotate)})
    turns = f"{by[0]:+d}" if len(by) == 1 else f"{by[0]:+d} to {by[-1]:+d}"
    return f"they stand {turns} positions from where they stood"


def _computes(other: Alternative) -> bool:
    return NAMES[Prefill] in other.name.split("+")


def told(plan: Plan, names: Names) -> Iterator[str]:
    """Sentences: the edit, then each reason with its share of the time, and of the error."""
    asked = edit(plan, names)
    if asked:
        yield f"the edit: {'; '.join(asked)}"
    for item in account(plan, names):
        yield f"{percent(item.share)} of {plan.predicted_ms:.4g} ms: {item.what}: {item.why}"
    for item in errors(plan, names):
        yield f"{percent(item.share)} of KL {plan.predicted_kl:.3g}: {item.what}: {item.why}"


def percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else "<1%"
