"""From a live window to a wanted one: lay it out, list what could be done for each chunk, choose, write.

Pure: what the store holds comes in as a Residency, what things cost as a CostTable. Equal inputs give equal
plans.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from .candidates import candidates
from .choose import choose
from .cost import CostTable
from .diff import Change, Comparison, Wanted
from .errors_model import ErrorModel
from .figures import Figures
from .layout import Layout, lay_out
from .options import Floats, Starts
from .outcome import after
from .plan import Op, Plan, Stash
from .policy import Policy
from .residency import Residency
from .site import Candidate, Scene, Site, worth_storing
from .window import Frame, Placement, WindowGraph
from .writing import Steps, evictions, in_order, placing, stashes, written

__all__ = ["Draft", "after", "draft", "make_plan"]


class Draft(NamedTuple):
    """What is chosen for each wanted chunk, and from what; the plan but for the writing."""

    graph: WindowGraph
    wanted: Sequence[Wanted]
    policy: Policy
    frame: Frame
    options: list[list[Candidate]]
    chosen: list[Candidate]
    starts: Starts
    steps: Steps
    """What is chosen, in the order it runs."""
    stashes: list[Stash]

    @property
    def ms(self) -> float:
        """What the plan will predict."""
        return round(sum([op.ms for op in self.stashes] + [step.ms for _, step in self.steps]), 4)

    def plan(self) -> Plan:
        owed = self.starts.besides(self.chosen)
        ops = placing(self.steps, self.wanted, self.chosen, self.options, self.policy, owed)
        every: list[Op] = [*self.stashes, *evictions(self.graph, self.wanted), *ops]
        return written(every, self.frame, self.policy, self.graph)


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
    return draft(graph, wanted, residency, costs, policy, frame, max_rows, headroom).plan()


def draft(
    graph: WindowGraph,
    wanted: Sequence[Wanted],
    residency: Residency,
    costs: CostTable,
    policy: Policy,
    frame: Frame,
    max_rows: int,
    headroom: int = 0,
) -> Draft:
    """The plan that `make_plan` of the same gives, before it is written."""
    layout = lay_out(graph, wanted, frame, max_rows, headroom, policy.name != "exact")
    sites = list(_sites(graph, wanted, residency, costs, layout, policy))
    options = [candidates(site) for site in sites]
    starts = _starts(options, costs)
    chosen = choose(sites, options, policy, starts, _shares(sites))
    survive = {w.uid for w, candidate in zip(wanted, chosen, strict=True) if candidate.survives}
    stashed = list(stashes(_lost(graph, survive, residency), costs)) if policy.stash else []
    steps = in_order(wanted, chosen, starts)
    return Draft(graph, wanted, policy, layout.frame, options, chosen, starts, steps, stashed)


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
    changes, there = comparison.changes(residency), zip(layout.rows, layout.positions, strict=True)
    for i, (w, change, live, (row, position)) in enumerate(
        zip(wanted, changes, comparison.live, there, strict=True)
    ):
        held = residency.of(w.chunk.id)
        yield Site(scene, i, w, change, live, held, row, position, fronts[i], comparison.fronts[i], clean)
        if w.clean:
            clean = clean | {w.chunk.id}


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
    site: Site,
    keys: frozenset[str],
) -> tuple[float, Change] | None:
    """Stored KV is a survivor of another window: of its contexts, the one that costs least KL here."""
    found: tuple[float, Change] | None = None
    for key in sorted(keys):
        context = residency.context(key)
        if context is None or not context.chunks.length:
            continue  # one that is forgotten tells nothing; one of no chunks is a canonical
        change = comparison.at(site.number, context.chunks, context.tokens, key)
        kl = errors.left(change, site.rows_in_front, site.weight)
        if found is None or kl < found[0]:
            found = kl, change
    return found


def _lost(graph: WindowGraph, survive: set[int], residency: Residency) -> Iterator[Placement]:
    """KV that this plan destroys and is worth storing; once a chunk and context."""
    seen: set[tuple[str, str]] = set()
    for p in graph.placements:
        if p.uid in survive:
            continue
        key = (p.chunk.id, p.antecedents.key)
        if key not in seen and worth_storing(p, residency.of(p.chunk.id)):
            seen.add(key)
            yield p


def _starts(options: Sequence[Sequence[Candidate]], costs: CostTable) -> Starts:
    """Rows are mended once what has to be computed anyway has run: for what is asked at the end, which runs
    again then with all that stands behind them."""
    forward = costs.of("prefill").base
    if not any(c.mends for candidates in options for c in candidates):
        return Starts(forward)
    new = [candidates[0].ms for candidates in options if candidates[0].computes and len(candidates) == 1]
    return Starts(forward, forward + sum(new))
