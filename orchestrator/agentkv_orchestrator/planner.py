"""From a live window to a wanted one: lay it out, list what could be done for each chunk, choose, write.

Pure: what the store holds comes in as a Residency, what things cost as a CostTable. Equal inputs give equal
plans.
"""

from collections.abc import Iterable, Iterator, Sequence

from .candidates import Candidate, Site, candidates
from .choose import choose, over, why_not
from .chunks import context_key
from .cost import CostTable
from .diff import Wanted, diff
from .errors import WindowError
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
from .window import Frame, WindowGraph

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
    options = [candidates(site) for site in sites]
    chosen = choose(sites, options, policy)
    steps = [
        step
        for candidate, others in zip(chosen, options, strict=True)
        for step in _annotated(candidate, others, policy)
    ]
    stashes = _stashes(graph, steps, residency, costs) if policy.stash else []
    return _write([*stashes, *_evictions(graph, wanted), *_fused(steps, costs)], layout.frame, policy, graph)


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
    start = graph.placements[0].row if graph.placements else 0
    return _write(ops, Frame(start=start, capacity=start + graph.tokens), policy, graph)


def _sites(
    graph: WindowGraph, wanted: Sequence[Wanted], residency: Residency, costs: CostTable, layout: Layout
) -> Iterator[Site]:
    front: list[str] = []
    window_tokens = sum(w.chunk.length for w in wanted)
    for w, change in zip(
        wanted, diff(graph, wanted, residency), strict=False
    ):  # drops follow, and have no site
        if w.chunk.span != w.chunk.length:
            got = f"chunk {w.chunk.id} of {w.chunk.length} tokens over {w.chunk.span} positions"
            raise WindowError(got, "one position a token", "keep chunks with other spans out of the window")
        row = layout.rows[w.uid]
        yield Site(
            wanted=w,
            change=change,
            placement=graph.get(w.uid),
            resident=residency.of(w.chunk.id),
            row=row,
            rows_in_front=row - layout.frame.start,
            front=tuple(front),
            window_tokens=window_tokens,
            costs=costs,
        )
        front.append(w.chunk.id)


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
    """Exact KV that this plan destroys and the store lacks, once for each chunk and context."""
    survives = {step.uid for step in steps if isinstance(step, Keep | Rotate)}
    survives -= {step.uid for step in steps if isinstance(step, ApplyRemoval)}
    seen: set[tuple[str, str]] = set()
    for p in graph.placements:
        if p.uid in survives or not p.exact:
            continue
        key = (p.chunk.id, context_key(p.antecedents))
        if key in seen or key[1] in residency.of(p.chunk.id).conditioned:
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


def _fused(steps: Sequence[Op], costs: CostTable) -> Iterator[Op]:
    """Prefills last, since they attend what the others put in place; canonicals formed first, each once.

    Neighbouring prefills run as one forward, so only the first of a run pays the base.
    """
    formed = {step.chunk: step for step in steps if isinstance(step, FormCanonical)}
    yield from formed.values()
    yield from (step for step in steps if not isinstance(step, FormCanonical | Prefill))
    end = None
    for step in steps:
        if isinstance(step, Prefill):
            saved = costs.ms["prefill"].base if step.row == end else 0.0
            yield step.model_copy(update={"ms": round(step.ms - saved, 4)})
            end = step.row + step.tokens


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
