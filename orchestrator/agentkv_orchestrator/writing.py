"""Chosen steps become the ops of a plan: in the order they run, each with what else there was."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from .choose import why_not
from .cost import CostTable
from .diff import Wanted
from .options import Starts, over
from .plan import PLACING, Alternative, Evict, FormCanonical, Op, Plan, Prefill, Stash
from .policy import Policy
from .site import MENDING, Candidate, Step
from .window import Frame, Placement, WindowGraph

Steps = list[tuple[int, Step]]
"""With the number of the wanted chunk that each is for."""


def in_order(wanted: Sequence[Wanted], chosen: Sequence[Candidate], starts: Starts) -> Steps:
    """Prefills last, since they attend what the others put in place; canonicals formed first, each once.

    All prefills run as one forward, and so do all rows that mend others; the first of each pays its start.
    """
    formed: dict[str, tuple[int, Step]] = {}
    others: Steps = []
    prefills: Steps = []
    mend, forward = starts.mend, starts.forward
    for i, candidate in enumerate(chosen):
        for step in candidate.steps:
            if step.kind is Prefill:
                prefills.append((i, _paying(step, forward)))
                forward = 0.0
            elif step.kind is FormCanonical:
                formed[wanted[i].chunk.id] = i, step
            elif step.kind in MENDING:
                others.append((i, _paying(step, mend)))
                mend = 0.0
            else:
                others.append((i, step))
    return [*formed.values(), *others, *prefills]


def _paying(step: Step, start: float) -> Step:
    return replace(step, ms=round(step.ms + start, 4)) if start else step


def placing(
    steps: Steps,
    wanted: Sequence[Wanted],
    chosen: Sequence[Candidate],
    options: Sequence[Sequence[Candidate]],
    policy: Policy,
    owed: Starts,
) -> Iterator[Op]:
    """The steps as ops; the one that places a chunk says what else there was.

    owed: what is paid once and nothing in the plan pays yet.
    """
    for i, step in steps:
        others: tuple[Alternative, ...] = ()
        if step.kind in PLACING and len(options[i]) > 1:
            mine = chosen[i]
            rest = [_alternative(c, mine, policy, owed) for c in options[i] if c.name != mine.name]
            others = tuple(rest)
        yield step.write(wanted[i], others)


def _alternative(other: Candidate, chosen: Candidate, policy: Policy, owed: Starts) -> Alternative:
    ms, once = other.ms, owed.of(other) if other.computes or other.mends else 0.0
    passed = why_not(other, chosen, policy, once)
    return Alternative(other.name, round(ms + once, 4) if once else ms, other.kl, other.reason, passed)


def stashes(lost: Iterable[Placement], costs: CostTable) -> Iterator[Stash]:
    for p in lost:
        yield Stash(
            uid=p.uid,
            chunk=p.chunk.id,
            tokens=p.chunk.length,
            row=p.row,
            context=p.antecedents.key,
            reason="exact, about to be lost and not stored",
            ms=round(costs.time("stash", p.chunk.length), 4),
        )


def evictions(graph: WindowGraph, wanted: Sequence[Wanted]) -> Iterator[Evict]:
    asked = {w.uid for w in wanted}
    for p in graph.placements:
        if p.uid not in asked:
            reason = "not wanted any more"
            yield Evict(uid=p.uid, chunk=p.chunk.id, tokens=p.chunk.length, row=p.row, reason=reason)


def written(ops: Sequence[Op], frame: Frame, policy: Policy, graph: WindowGraph) -> Plan:
    kl = round(sum([op.kl for op in ops]), 6)
    return Plan.model_construct(
        ops=tuple(ops),
        frame=frame,
        policy=policy.name,
        kl_budget=policy.allowance,
        predicted_ms=round(sum([op.ms for op in ops]), 4),
        predicted_kl=kl,
        over_budget=over(kl, policy.allowance),
        base_revision=graph.revision,
    )
