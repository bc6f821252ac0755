"""Idle work: what is off in a window is computed again a little at a time, what is stored becomes patches."""

from collections.abc import Iterator, Sequence

from .cost import CostTable
from .diff import Wanted
from .lineage import EMPTY
from .plan import FormCanonical, FormPatch, Op, Plan
from .planner import make_plan
from .policy import Policy
from .residency import Residency
from .window import Frame, WindowGraph
from .writing import written

_HALVINGS = 7
"""How often the budget between what a window carries and nothing is halved."""


def plan_settle(
    graph: WindowGraph, residency: Residency, policy: Policy, costs: CostTable, ms: float | None = None
) -> Plan:
    """Work on the store: a patch for each stored conditioned block that lacks one. No row moves.

    ms: stop in front of the op that would take longer than this in all; None: all of it. The plan's frame
    holds the live rows and nothing more.
    """
    first = graph.placements[0] if graph.placements else None
    start, position = (first.row, first.position) if first else (0, 0)
    frame = Frame(start=start, capacity=start + graph.tokens, position=position)
    ops, taken = list[Op](), 0.0
    for op in _forming(graph, residency, costs):
        taken += op.ms
        if ms is not None and taken > ms:
            break
        ops.append(op)
    return written(ops, frame, policy, graph)


def _forming(graph: WindowGraph, residency: Residency, costs: CostTable) -> Iterator[Op]:
    lengths = {p.chunk.id: p.chunk.length for p in graph.placements}
    for chunk_id in sorted(residency.known()):
        held = residency.of(chunk_id)
        contexts = sorted(held.conditioned - held.patches - {EMPTY.key})
        tokens = lengths.get(chunk_id, held.tokens)
        if contexts and not held.canonical:
            ms = round(costs.time("form_canonical", tokens), 4)
            reason = "its patches need a canonical and none is stored"
            yield FormCanonical(chunk=chunk_id, tokens=tokens, reason=reason, ms=ms)
        for context in contexts:
            ms = round(costs.time("form_patch", tokens), 4)
            reason = "exact KV is stored for this context and no patch"
            yield FormPatch(chunk=chunk_id, tokens=tokens, context=context, reason=reason, ms=ms)


def plan_refresh(
    graph: WindowGraph,
    wanted: Sequence[Wanted],
    residency: Residency,
    costs: CostTable,
    policy: Policy,
    frame: Frame,
    max_rows: int,
    ms: float,
) -> Plan | None:
    """The plan that takes most KL out of the window within `ms`, or None if none does: what is worth most a
    millisecond goes first, antecedents before what was computed behind them.

    It is the balanced plan of the smallest budget that the time allows. Calling it again and again, a little
    time each, brings the window to where a re-prefill would have it.
    """

    def within(budget: float) -> Plan:
        spending = Policy(name="balanced", kl_budget=budget, stash=policy.stash)
        return make_plan(graph, wanted, residency, costs, spending, frame, max_rows)

    now = within(float("inf")).predicted_kl
    low, high, best = 0.0, now, None
    for attempt in range(_HALVINGS):
        budget = (low + high) / 2 if attempt else 0.0
        plan = within(budget)
        if plan.predicted_ms > ms:
            low = budget
            continue
        high = budget
        if plan.predicted_kl < now:
            best = plan
    return best
