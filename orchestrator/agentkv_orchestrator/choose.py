"""One candidate for every chunk, by policy."""

from collections.abc import Sequence
from functools import partial
from math import inf

from .candidates import clean_view, prefill, standing
from .cascade import heirs, inherits, searched, settled, total_kl
from .knapsack import cheapest
from .options import Floats, Options, Picks, Starts, of, over
from .policy import Policy
from .site import Candidate, Site

FEW, SEARCHED = 10, 24
"""Chunks with a choice up to which every partial choice worth keeping is looked at: at once, or once a good
choice is known that most of them have to beat."""


def choose(
    sites: Sequence[Site],
    groups: Sequence[Sequence[Candidate]],
    policy: Policy,
    starts: Starts,
    shares: Floats,
) -> list[Candidate]:
    """Pick from each chunk's candidates; what exact picks is always among them.

    shares: of the window's KL, by chunk, that an error of it makes once it is computed. What is computed
    behind KV that is off inherits that: it is in the KL of what is answered.
    """
    if policy.name == "exact":
        return _exact(sites)
    if policy.name == "fast":
        chosen = [_fastest(candidates) for candidates in groups]
    else:
        chosen = _balanced(groups, policy.allowance, starts, shares)
    return heirs(chosen, shares)


def _exact(sites: Sequence[Site]) -> list[Candidate]:
    """Keep the prefix a prefix cache would have; compute the rest again, clean views apart."""
    chosen: list[Candidate] = []
    intact = True
    for site in sites:
        intact = intact and _untouched(site)
        kept = standing(site) if intact else None
        chosen.append(kept or (clean_view(site) if site.wanted.clean else prefill(site)))
    return chosen


def _untouched(site: Site) -> bool:
    """What is wanted stands there already, and behind a prefix of such so does what a prefix cache holds."""
    p = site.placement
    if p is None or not site.stands or site.change.kind != "kept" or p.clean != site.wanted.clean:
        return False
    return p.clean or p.verbatim


def _fastest(candidates: Sequence[Candidate]) -> Candidate:
    """Least time; computing again is no choice where anything is held."""
    held = [c for c in candidates if not (c.computes or c.mends)]
    return min(held or candidates, key=lambda c: (c.price, c.kl))


def _balanced(
    groups: Sequence[Sequence[Candidate]], budget: float, starts: Starts, shares: Floats
) -> list[Candidate]:
    """The cheapest choice inside the budget, what is inherited counted: the cheapest of each chunk where that
    fits and needs no forward."""
    options = Options.of(groups)
    picks = options.cheapest()
    forward = of(options.computes | options.mends, picks).any()
    if forward or over(of(options.kl, picks).sum(), budget):
        picks = _bought(options, budget, starts, shares)
    return [group[pick] for group, pick in zip(groups, picks.tolist(), strict=True)]


def _bought(options: Options, budget: float, starts: Starts, shares: Floats) -> Picks:
    """As `_balanced`. With nothing inherited a choice is no dearer; if it fits nevertheless, it is the best
    there is."""
    choices = options.open.sum()
    if choices <= FEW:
        return searched(options, budget, shares, starts, options.closest())
    picks = _within(options, budget, starts)
    heard = inherits(options, picks, shares)
    if not over(total_kl(options, picks, heard), budget):
        return picks
    picks = settled(options, picks, heard, budget, shares, starts, partial(_within, starts=starts))
    return searched(options, budget, shares, starts, picks) if choices <= SEARCHED else picks


def _within(options: Options, budget: float, starts: Starts) -> Picks:
    """The cheapest choice with a KL of `budget` at most, as each candidate states it. What is paid once has
    to be worth it, so the best choices with and without it are compared."""
    found = [cheapest(options, budget)]
    mends = bool(options.mends.any())
    if of(options.computes, found[0]).any():
        found += _fitting(options.without(options.computes), budget)
    if mends:
        found += _fitting(options.without(options.mends), budget)
        found += _fitting(options.without(options.mends | options.computes), budget)
    return min(found, key=lambda picks: options.total(picks, starts)) if len(found) > 1 else found[0]


def _fitting(options: Options, budget: float) -> list[Picks]:
    """The cheapest choice among these, if there is one: every chunk has an option and the closest ones
    together keep the budget."""
    closest = options.kl.min(axis=1).sum()
    return [] if closest == inf or over(closest, budget) else [cheapest(options, budget)]


def why_not(other: Candidate, chosen: Candidate, policy: Policy, owed: float) -> str:
    """Why a candidate was passed over, in words. owed: ms that it would cost on top, as nothing else in the
    plan pays for its forward."""
    ms, mine = other.ms + owed, chosen.ms
    if policy.name == "exact":
        return "not bit for bit what a prefix cache gives"
    if policy.name == "fast":
        return "slower" if ms >= mine else "fast computes only what nothing holds"
    if ms < mine:
        return f"{mine - ms:.3g} ms faster, but its KL of {other.kl:.3g} does not fit the budget"
    if other.kl >= chosen.kl:
        return "neither faster nor closer"
    return f"closer, but {ms - mine:.3g} ms slower and the budget holds without it"
