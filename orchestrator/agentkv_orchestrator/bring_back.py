"""What a plan would cost to take back: an eviction is wrong by no more than that."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from .cost import CostTable
from .diff import Wanted
from .outcome import after
from .plan import Evict, FormCanonical, Plan, Stash
from .planner import make_plan
from .policy import Policy
from .residency import Context, FrozenResidency, Residency, Resident
from .window import WindowGraph


def taken_back(
    plan: Plan,
    graph: WindowGraph,
    wanted: Sequence[Wanted],
    residency: Residency,
    costs: CostTable,
    policy: Policy,
    max_rows: int,
) -> Plan:
    """The plan that turns `wanted` back into `graph` once `plan` has run, if the store keeps what came in.

    The arguments are those that `plan` was made with. Raises what make_plan raises.
    """
    left = after(graph, plan, wanted, residency)
    before = [Wanted(uid=p.uid, chunk=p.chunk, clean=p.clean, pinned=p.pinned) for p in graph.placements]
    return make_plan(left, before, _stored(plan, graph, residency), costs, policy, plan.frame, max_rows)


def with_bring_back(
    plan: Plan,
    graph: WindowGraph,
    wanted: Sequence[Wanted],
    residency: Residency,
    costs: CostTable,
    policy: Policy,
    max_rows: int,
) -> Plan:
    """`plan`, whose evictions say what the plan that takes it back would spend on each of them."""
    if not any(isinstance(op, Evict) for op in plan.ops):
        return plan
    ms: dict[int | None, float] = defaultdict(float)
    kl: dict[int | None, float] = defaultdict(float)
    for op in taken_back(plan, graph, wanted, residency, costs, policy, max_rows).ops:
        ms[op.uid] += op.ms
        kl[op.uid] += op.kl
    ops = tuple(
        replace(op, bring_back_ms=round(ms[op.uid], 4), bring_back_kl=round(kl[op.uid], 6))
        if isinstance(op, Evict)
        else op
        for op in plan.ops
    )
    return plan.model_copy(update={"ops": ops})


def _stored(plan: Plan, graph: WindowGraph, residency: Residency) -> FrozenResidency:
    """What is held for the chunks of both windows once the plan has run."""
    residents: dict[str, Resident] = {}
    contexts: dict[str, Context] = {}
    for chunk in {op.chunk for op in plan.ops} | {p.chunk.id for p in graph.placements}:
        held = residents[chunk] = residency.of(chunk)
        for key in held.conditioned | held.patches:
            context = residency.context(key)
            if context is not None:
                contexts[key] = context
    for op in plan.ops:
        held = residents[op.chunk]
        p = graph.get(op.uid) if isinstance(op, Stash) else None
        if isinstance(op, FormCanonical):
            residents[op.chunk] = held.model_copy(update={"canonical": True})
        elif isinstance(op, Stash) and p is not None:
            contexts[op.context] = Context(chunks=p.antecedents, tokens=p.antecedent_tokens)
            update = {
                "tokens": op.tokens,
                "conditioned": held.conditioned | {op.context},
                "patches": held.patches - {op.context},
                "hearsay": {**held.hearsay, op.context: p.hearsay},
            }
            residents[op.chunk] = held.model_copy(update=update)
    return FrozenResidency(residents, contexts)
