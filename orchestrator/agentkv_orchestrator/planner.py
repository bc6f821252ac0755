"""From a live window to a wanted one: lay it out, list what could be done for each chunk, choose, write.

Pure: what the store holds comes in as a Residency, what things cost as a CostTable. Equal inputs give equal
plans.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from .candidates import Candidate, Site, candidates
from .choose import choose, over, why_not
from .chunks import context_key
from .cost import CostTable
from .diff import Change, Wanted, compare, diff
from .layout import Layout, lay_out
from .outcome import after
from .plan import (
    Alternative,
    ApplyRemoval,
    Evict,
    FormCanonical,
    FormPatch,
    Keep,
    Op,
    Placing,
    Plan,
    Prefill,
    Rotate,
    Stash,
)
from .policy import Policy
from .residency import Residency
from .window import Frame, Placement, WindowGraph

__all__ = ["after", "make_plan", "plan_settle"]


def make_plan(
    graph: WindowGraph,
    wanted: Sequence[Wanted],
    residency: Residency,
    costs: CostTable,
    policy: Policy,
    frame: Frame,
    max_rows: int,
    headroom: int = 0,
    frame_moves: bool = True,
) -> Plan:
    """The plan that turns `graph`, standing in `frame`, into `wanted` with `headroom` free rows behind it.

    frame_moves=False keeps the start row where it is, for models whose queries depend on absolute positions.
    Raises WindowError for a wanted window that contradicts itself or the live one, CapacityError when it does
    not fit, PlanError when the cost table lacks an op.
    """
    layout = lay_out(graph, wanted, frame, max_rows, headroom, frame_moves and policy.name != "exact")
    sites = list(_sites(graph, wanted, residency, costs, layout))
    forward_runs = sites[0].forward_runs if sites else False
    options = [candidates(site) for site in sites]
    chosen = choose(sites, options, policy)
    steps = [
        step
        for candidate, others in zip(chosen, options, strict=True)
        for step in _annotated(candidate, others, policy)
    ]
    stashes = _stashes(graph, steps, residency, costs) if policy.stash else []
    return _write(
        [*stashes, *_evictions(graph, wanted), *_fused(steps, costs, forward_runs)],
        layout.frame,
        policy,
        graph,
    )


def plan_settle(graph: WindowGraph, residency: Residency, policy: Policy, costs: CostTable) -> Plan:
    """Idle work on the store: a patch for each stored conditioned block that lacks one. No row moves.

    The plan's frame holds the live rows and nothing more.
    """
    ops: list[Op] = []
    lengths = {p.chunk.id: p.chunk.length for p in graph.placements}
    for chunk_id in sorted(residency.known()):
        held = residency.of(chunk_id)
        contexts = sorted(held.conditioned - held.patches - {context_key(())})
        tokens = lengths.get(chunk_id, held.tokens)
        if contexts and not held.canonical:
            ms = round(costs.time("form_canonical", tokens), 4)
            reason = "its patches need a canonical and none is stored"
            ops.append(FormCanonical(chunk=chunk_id, tokens=tokens, reason=reason, ms=ms))
        for context in contexts:
            ms = round(costs.time("form_patch", tokens), 4)
            reason = "exact KV is stored for this context and no patch"
            ops.append(FormPatch(chunk=chunk_id, tokens=tokens, context=context, reason=reason, ms=ms))
    first = graph.placements[0] if graph.placements else None
    start, position = (first.row, first.position) if first else (0, 0)
    frame = Frame(start=start, capacity=start + graph.tokens, position=position)
    return _write(ops, frame, policy, graph)


def _sites(
    graph: WindowGraph, wanted: Sequence[Wanted], residency: Residency, costs: CostTable, layout: Layout
) -> Iterator[Site]:
    front: list[str] = []
    window_tokens = sum(w.chunk.length for w in wanted)
    changes = diff(graph, wanted, residency)[: len(wanted)]  # drops follow, and have no site
    forward_runs = any(change.kind == "new" for change in changes)
    for i, (w, change) in enumerate(zip(wanted, changes, strict=True)):
        place = layout.places[w.uid]
        yield Site(
            wanted=w,
            change=change,
            placement=graph.get(w.uid),
            resident=residency.of(w.chunk.id),
            place=place,
            rows_in_front=place.row - layout.frame.start,
            front=tuple(front),
            clean_front=frozenset(v.chunk.id for v in wanted[:i] if v.clean),
            window_tokens=window_tokens,
            costs=costs,
            nearest=partial(_nearest, graph, wanted, i, residency, costs),
            forward_runs=forward_runs,
        )
        front.append(w.chunk.id)


def _nearest(
    graph: WindowGraph,
    wanted: Sequence[Wanted],
    at: int,
    residency: Residency,
    costs: CostTable,
    keys: frozenset[str],
) -> Change | None:
    """Stored KV is a survivor of another window: of its contexts, the one that costs least KL here."""
    w, tokens = wanted[at], sum(w.chunk.length for w in wanted)
    found: list[tuple[float, str, Change]] = []
    for key in sorted(keys):
        context = residency.context(key)
        if context is None or not context.chunks:
            continue  # forgotten, or conditioned on nothing: that is a canonical
        stored = Placement(
            uid=w.uid,
            chunk=w.chunk,
            row=0,
            position=0,
            antecedents=context.chunks,
            antecedent_tokens=context.tokens,
            exact=True,
            revision=0,
        )
        change = compare(graph, stored, wanted, at)
        found.append((costs.stale(change, tokens), key, change))
    if not found:
        return None
    _, key, change = min(found, key=lambda f: f[:2])
    return change.model_copy(update={"context": key})


def _annotated(chosen: Candidate, options: Iterable[Candidate], policy: Policy) -> Iterator[Op]:
    """The chosen steps; the one that places the chunk says what else there was."""
    others = tuple(
        Alternative(
            name=other.name,
            ms=round(other.ms, 4),
            kl=round(other.kl, 6),
            why_not=why_not(other, chosen, policy),
        )
        for other in options
        if other.name != chosen.name
    )
    for step in chosen.steps:
        yield step.model_copy(update={"alternatives": others}) if isinstance(step, Placing) else step


def _stashes(
    graph: WindowGraph, steps: Sequence[Op], residency: Residency, costs: CostTable
) -> Iterator[Stash]:
    """KV that this plan destroys and the store lacks, or has from worse hearsay; once a chunk and context."""
    survives = {step.uid for step in steps if isinstance(step, Keep | Rotate)}
    survives -= {step.uid for step in steps if isinstance(step, ApplyRemoval)}
    seen: set[tuple[str, str]] = set()
    for p in graph.placements:
        if p.uid in survives or not p.exact:
            continue
        key = (p.chunk.id, context_key(p.antecedents))
        held = residency.of(p.chunk.id)
        stored = key[1] in held.conditioned or key[1] in held.patches
        if key in seen or (stored and held.hearsay.get(key[1], 0.0) <= p.hearsay):
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


def _fused(steps: Sequence[Op], costs: CostTable, forward_runs: bool) -> Iterator[Op]:
    """Prefills last, since they attend what the others put in place; canonicals formed first, each once.

    All prefills run as one forward, so only the first pays its base. Where a forward was to run anyway, none
    has been charged for it yet.
    """
    formed = {step.chunk: step for step in steps if isinstance(step, FormCanonical)}
    yield from formed.values()
    yield from (step for step in steps if not isinstance(step, FormCanonical | Prefill))
    base = costs.ms["prefill"].base
    for i, step in enumerate(step for step in steps if isinstance(step, Prefill)):
        owed = base * ((i == 0) - (not forward_runs))
        yield step.model_copy(update={"ms": round(step.ms + owed, 4)})


def _write(ops: Sequence[Op], frame: Frame, policy: Policy, graph: WindowGraph) -> Plan:
    kl = round(sum(op.kl for op in ops), 6)
    return Plan(
        ops=tuple(ops),
        frame=frame,
        policy=policy.name,
        kl_budget=policy.allowance,
        predicted_ms=round(sum(op.ms for op in ops), 4),
        predicted_kl=kl,
        over_budget=over(kl, policy.allowance),
        base_revision=graph.revision,
    )
