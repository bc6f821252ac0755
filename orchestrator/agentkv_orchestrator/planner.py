"""From a live window to a wanted one: lay it out, list what could be done for each chunk, choose, write.

Pure: what the store holds comes in as a Residency, what things cost as a CostTable. Equal inputs give equal
plans.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from .candidates import candidates
from .choose import choose, why_not
from .cost import CostTable
from .diff import Change, Comparison, Wanted
from .errors_model import ErrorModel, Where
from .figures import Figures
from .layout import Layout, lay_out
from .options import Floats, Starts, over
from .outcome import after
from .plan import (
    PLACING,
    Alternative,
    Evict,
    FormCanonical,
    Mending,
    Op,
    Plan,
    Prefill,
    Stash,
)
from .policy import Policy
from .residency import Residency
from .site import Candidate, Scene, Site, worth_storing
from .window import Frame, WindowGraph

__all__ = ["after", "make_plan"]


def make_plan(
    graph: WindowGraph,
    wanted: Sequence[Wanted],
    residency: Residency,
    costs: CostTable,
    policy: Policy,
    frame: Frame,
    max_rows: int,
    headroom: int = 0,
) -> Plan:
    """The plan that turns `graph`, standing in `frame`, into `wanted` with `headroom` free rows behind it.

    Raises WindowError for a wanted window that contradicts itself or the live one, CapacityError when it does
    not fit, PlanError when the cost table lacks an op.
    """
    layout = lay_out(graph, wanted, frame, max_rows, headroom, policy.name != "exact")
    sites = list(_sites(graph, wanted, residency, costs, layout, policy))
    options = [candidates(site) for site in sites]
    starts = _starts(options, costs)
    chosen = choose(sites, options, policy, starts, _shares(sites))
    owed = starts.besides(chosen)
    steps = [
        op
        for w, candidate, others in zip(wanted, chosen, options, strict=True)
        for op in _written(w, candidate, others, policy, owed)
    ]
    survive = {w.uid for w, candidate in zip(wanted, chosen, strict=True) if candidate.survives}
    stashes = _stashes(graph, survive, residency, costs) if policy.stash else []
    return written(
        [*stashes, *_evictions(graph, wanted), *_fused(steps, starts)], layout.frame, policy, graph
    )


def _sites(
    graph: WindowGraph,
    wanted: Sequence[Wanted],
    residency: Residency,
    costs: CostTable,
    layout: Layout,
    policy: Policy,
) -> Iterator[Site]:
    comparison = Comparison(graph, wanted)
    asked = _asked(wanted, graph, residency)
    fronts = comparison.tokens_in_front
    window = fronts[-1] - (wanted[-1].chunk.length if asked else 0)
    scene = Scene(
        costs,
        window,
        partial(_nearest, comparison, residency, costs.kl),
        policy.stash,
        Figures(costs, wanted, fronts[:-1], window),
        asked,
    )
    clean: frozenset[str] = frozenset()
    placed = zip(wanted, comparison.changes(residency), layout.rows, layout.positions, strict=True)
    for i, (w, change, row, position) in enumerate(placed):
        live, front, held = comparison.live[i], comparison.fronts[i], residency.of(w.chunk.id)
        yield Site(scene, i, w, change, live, held, row, position, fronts[i], front, clean)
        clean = clean | {w.chunk.id} if w.clean else clean


def _shares(sites: Sequence[Site]) -> Floats:
    """By chunk, the share of the window's KL that an error of it makes.

    A new chunk at the end is what is asked: the figures of all others were measured there, its own error
    among them.
    """
    shares = np.array([site.weight for site in sites])
    if sites and sites[-1].placement is None:
        shares[-1] = 0.0
    return shares


def _asked(wanted: Sequence[Wanted], graph: WindowGraph, residency: Residency) -> bool:
    """The last chunk is new."""
    last = wanted[-1] if wanted else None
    return last is not None and graph.get(last.uid) is None and residency.of(last.chunk.id).empty


def _nearest(
    comparison: Comparison,
    residency: Residency,
    errors: ErrorModel,
    at: int,
    where: Where,
    keys: frozenset[str],
) -> Change | None:
    """Stored KV is a survivor of another window: of its contexts, the one that costs least KL here."""
    known = [(key, residency.context(key)) for key in sorted(keys)]
    # One that is forgotten tells nothing; one of no chunks is a canonical.
    changes = [comparison.at(at, c.chunks, c.tokens, key) for key, c in known if c and c.chunks]
    return min(changes, key=lambda change: (errors.stale(change, where), change.context), default=None)


def _written(
    wanted: Wanted, chosen: Candidate, options: Sequence[Candidate], policy: Policy, owed: Starts
) -> list[Op]:
    """The chosen steps as ops; the one that places the chunk says what else there was.

    owed: what is paid once and nothing in the plan pays yet.
    """
    others: tuple[Alternative, ...] = ()
    if len(options) > 1:
        rest = [other for other in options if other.name != chosen.name]
        others = tuple([_alternative(other, chosen, policy, owed.of(other)) for other in rest])
    return [step.write(wanted, others if step.kind in PLACING else ()) for step in chosen.steps]


def _alternative(other: Candidate, chosen: Candidate, policy: Policy, owed: float) -> Alternative:
    ms = round(other.ms + owed, 4) if owed else other.ms
    reason, passed = other.steps[-1].reason, why_not(other, chosen, policy, owed)
    return Alternative(other.name, ms, other.kl, reason, passed)


def _stashes(
    graph: WindowGraph, survive: set[int], residency: Residency, costs: CostTable
) -> Iterator[Stash]:
    """KV that this plan destroys and is worth storing; once a chunk and context."""
    seen: set[tuple[str, str]] = set()
    for p in graph.placements:
        if p.uid in survive:
            continue
        key = (p.chunk.id, p.antecedents.key)
        if key in seen or not worth_storing(p, residency.of(p.chunk.id)):
            continue
        seen.add(key)
        yield Stash(
            uid=p.uid,
            chunk=p.chunk.id,
            tokens=p.chunk.length,
            row=p.row,
            context=key[1],
            reason="exact, about to be lost and not stored",
            ms=round(costs.time("stash", p.chunk.length), 4),
        )


def _evictions(graph: WindowGraph, wanted: Sequence[Wanted]) -> Iterator[Evict]:
    asked = {w.uid for w in wanted}
    for p in graph.placements:
        if p.uid not in asked:
            reason = "not wanted any more"
            yield Evict(uid=p.uid, chunk=p.chunk.id, tokens=p.chunk.length, row=p.row, reason=reason)


def _fused(steps: Sequence[Op], starts: Starts) -> Iterator[Op]:
    """Prefills last, since they attend what the others put in place; canonicals formed first, each once.

    All prefills run as one forward, and so do all rows that mend others; the first of each pays its start.
    """
    formed = {step.chunk: step for step in steps if type(step) is FormCanonical}
    yield from formed.values()
    prefills: list[Op] = []
    mend, forward = starts.mend, starts.forward
    for step in steps:
        if isinstance(step, Mending):
            yield _paying(step, mend)
            mend = 0.0
        elif type(step) is Prefill:
            prefills.append(_paying(step, forward))
            forward = 0.0
        elif type(step) is not FormCanonical:
            yield step
    yield from prefills


def _paying(op: Op, start: float) -> Op:
    return replace(op, ms=round(op.ms + start, 4)) if start else op


def _starts(options: Sequence[Sequence[Candidate]], costs: CostTable) -> Starts:
    """Rows are mended once what has to be computed anyway has run: for what is asked at the end, which runs
    again then with all that stands behind them."""
    forward = costs.of("prefill").base
    if not any(c.mends for candidates in options for c in candidates):
        return Starts(forward)
    new = [candidates[0].ms for candidates in options if candidates[0].computes and len(candidates) == 1]
    return Starts(forward, forward + sum(new))


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
