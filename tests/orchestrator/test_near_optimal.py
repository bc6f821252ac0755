"""Balanced plans against every combination of candidates there is."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from random import Random

import numpy as np
from agentkv_orchestrator.candidates import candidates
from agentkv_orchestrator.cascade import inherits, total_kl
from agentkv_orchestrator.choose import SEARCHED, choose
from agentkv_orchestrator.chunks import set_key
from agentkv_orchestrator.cost import CostTable
from agentkv_orchestrator.diff import Wanted
from agentkv_orchestrator.layout import lay_out
from agentkv_orchestrator.options import Options, Starts
from agentkv_orchestrator.plan import Stash
from agentkv_orchestrator.planner import _shares, _sites, _starts, after, make_plan
from agentkv_orchestrator.policy import Policy
from agentkv_orchestrator.residency import FrozenResidency, Resident
from agentkv_orchestrator.search import Limits, search
from agentkv_orchestrator.site import Candidate
from agentkv_orchestrator.window import Frame, WindowGraph

from tests.strategies import COSTS, MENDING, chunk

CASES = 2000
CHUNKS = 12
COMBINATIONS = 2**12
WORST = 0.03
LONG_CASES, LONG_WORST, WIDE = 30, 0.1, 5000
"""Of windows that are too long to try every combination: by how much a search of so many partial choices may
beat one plan; the mean stays below WORST."""
LONG_FRAME, LONG_ROWS = Frame(start=0, capacity=65536), 65536
FRAME, ROWS = Frame(start=0, capacity=8192), 8192
NOTHING = FrozenResidency()
EXACT = Policy(name="exact")


def least(
    options: Sequence[Sequence[Candidate]], shares: Sequence[float], budget: float, starts: Starts
) -> float:
    """The least price of all combinations with a KL within the budget, by adding up each of them, from the
    front
    on: what is computed inherits its share of the KL in front."""
    price, kl = np.zeros(1), np.zeros(1)
    computes, mends = np.zeros(1, dtype=bool), np.zeros(1, dtype=bool)
    for group, share in zip(options, shares, strict=True):
        price = np.add.outer(price, [c.price for c in group]).reshape(-1)
        heirs = np.multiply.outer(kl, [share * c.computes for c in group])
        kl = (np.add.outer(kl, [c.kl for c in group]) + heirs).reshape(-1)
        computes = np.logical_or.outer(computes, [c.computes for c in group]).reshape(-1)
        mends = np.logical_or.outer(mends, [c.mends for c in group]).reshape(-1)
    return float((price + starts.forward * computes + starts.mend * mends)[kl <= budget + 1e-9].min())


def edited(random: Random, live: list[Wanted]) -> list[Wanted]:
    """A few chunks leave, swap places or come."""
    wanted = [w for w in live if random.random() > 0.15]
    for _ in range(random.randrange(3)):
        if len(wanted) > 1:
            wanted.insert(random.randrange(len(wanted)), wanted.pop(random.randrange(len(wanted))))
    while len(wanted) < CHUNKS and random.random() < 0.5:
        name = f"new{len(wanted)}"
        fresh = Wanted(uid=100 + len(wanted), chunk=chunk(name, random.randint(8, 300)))
        wanted.insert(random.randint(0, len(wanted)), fresh)
    return wanted


def stored(random: Random, wanted: Sequence[Wanted]) -> FrozenResidency:
    """What a store might hold of each chunk: nothing, or some way to bring it back."""
    residents, front = {}, list[str]()
    for w in wanted:
        residents[w.chunk.id] = Resident(
            tokens=w.chunk.length,
            canonical=random.random() < 0.7,
            orbits=frozenset({set_key(front)} if random.random() < 0.5 else ()),
            hearsay={set_key(front): random.choice((0.0, 0.004))},
        )
        front.append(w.chunk.id)
    return FrozenResidency(residents)


def gap(random: Random) -> float | None:
    """By which share a plan takes longer than the best one; None where there are too many to try."""
    costs = random.choice((COSTS, MENDING, CostTable.shipped()))
    live = [
        Wanted(uid=i, chunk=chunk(f"c{i}", random.randint(8, 300))) for i in range(random.randint(2, CHUNKS))
    ]
    first = make_plan(WindowGraph(), live, NOTHING, costs, EXACT, FRAME, ROWS)
    graph, wanted = after(WindowGraph(), first, live, NOTHING), edited(random, live)
    held = stored(random, wanted)
    policy = Policy(kl_budget=10 ** random.uniform(-3, -0.5), stash=random.random() < 0.5)
    plan = make_plan(graph, wanted, held, costs, policy, FRAME, ROWS)
    assert plan.predicted_kl <= policy.kl_budget + 1e-9
    sites = list(_sites(graph, wanted, held, costs, lay_out(graph, wanted, FRAME, ROWS), policy))
    options = [candidates(site) for site in sites]
    if prod(map(len, options)) > COMBINATIONS:
        return None
    asked, shares = {w.uid for w in wanted}, _shares(sites)
    leaving = sum(op.ms for op in plan.ops if isinstance(op, Stash) and op.uid not in asked)
    best = least(options, shares, policy.kl_budget, _starts(options, costs)) + leaving
    assert plan.predicted_ms >= best - 1e-3 * (1 + len(options))  # figures are rounded
    return plan.predicted_ms / best - 1 if best else float(plan.predicted_ms > 0)


def test_a_balanced_plan_takes_no_longer_than_the_best_one() -> None:
    random, gaps = Random(1), list[float]()
    while len(gaps) < CASES:
        found = gap(random)
        if found is not None:
            gaps.append(found)
    ranks = {f"{q}%": f"{np.quantile(gaps, q / 100):.2%}" for q in (50, 90, 99, 99.9)}
    message = f"worst gap {max(gaps):.2%} of {CASES} cases, quantiles {ranks}"
    print(message)
    assert max(gaps) <= WORST, message


def long_gap(random: Random) -> float | None:
    """By which share a wide search finds a cheaper choice for a window with many choices."""
    costs = random.choice((COSTS, CostTable.shipped()))
    chunks = [chunk(f"c{i}", random.randint(8, 300)) for i in range(random.randint(28, 60))]
    live = [Wanted(uid=i, chunk=c) for i, c in enumerate(chunks)]
    first = make_plan(WindowGraph(), live, NOTHING, costs, EXACT, LONG_FRAME, LONG_ROWS)
    graph, wanted = after(WindowGraph(), first, live, NOTHING), edited(random, live)
    held = stored(random, wanted) if random.random() < 0.5 else NOTHING
    layout = lay_out(graph, wanted, LONG_FRAME, LONG_ROWS)
    sites = list(_sites(graph, wanted, held, costs, layout, Policy()))
    groups = [candidates(site) for site in sites]
    options, shares, starts = Options.of(groups), _shares(sites), _starts(groups, costs)
    loose = options.cheapest()
    kl = total_kl(options, loose, inherits(options, loose, shares))
    if options.open.sum() <= SEARCHED or not kl:
        return None
    budget = kl * 10 ** random.uniform(-1, -0.05)
    chosen = choose(sites, groups, Policy(kl_budget=budget), starts, shares)
    assert sum(c.kl for c in chosen) <= budget + 1e-9
    once = starts.besides(chosen)
    total = sum(c.price for c in chosen) + sum(starts) - sum(once)
    found = search(options, shares, starts, Limits(budget, total * (1 - 1e-9)), WIDE)
    return total / options.total(found, starts) - 1 if found is not None else 0.0


def test_long_windows_are_planned_near_the_best_that_a_wide_search_finds() -> None:
    """Too many choices for the exact search, so what is inherited is settled by a few rounds of charges."""
    random, gaps = Random(2), list[float]()
    while len(gaps) < LONG_CASES:
        found = long_gap(random)
        if found is not None:
            gaps.append(found)
    message = f"mean gap {np.mean(gaps):.2%}, worst {max(gaps):.2%} of {LONG_CASES} cases"
    print(message)
    assert np.mean(gaps) <= WORST, message
    assert max(gaps) <= LONG_WORST, message
