"""One candidate for every chunk, by policy."""

from collections.abc import Sequence
from functools import partial

from .candidates import clean_view, keep, prefill
from .cascade import Starts, heirs, inheritable, searched, settled, total_kl
from .knapsack import Options, cheapest, over
from .policy import Policy
from .site import Candidate, Site

SEARCHED = 24
"""Chunks with a choice up to which every partial choice worth keeping is looked at."""


def choose(
    sites: Sequence[Site], options: Options, policy: Policy, starts: Starts, shares: Sequence[float]
) -> list[Candidate]:
    """Pick from each chunk's candidates; what exact picks is always among them.

    shares: of the window's KL, by chunk, that an error of it makes once it is computed. What is computed
    behind KV that is off inherits that: it is in the KL of what is answered.
    """
    if policy.name == "exact":
        return _exact(sites)
    if policy.name == "fast":
        chosen = [_fastest(candidates) for candidates in options]
    else:
        chosen = _balanced(options, policy.allowance, starts, shares)
    return heirs(chosen, shares)


def _exact(sites: Sequence[Site]) -> list[Candidate]:
    """Keep the prefix a prefix cache would have; compute the rest again, clean views apart."""
    chosen: list[Candidate] = []
    intact = True
    for site in sites:
        intact = intact and _untouched(site)
        kept = keep(site) if intact else None
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


def _balanced(options: Options, budget: float, starts: Starts, shares: Sequence[float]) -> list[Candidate]:
    """The cheapest choice inside the budget, what is inherited counted.

    Without that the choice is no dearer; if it fits nevertheless, it is the best there is.
    """
    chosen = _within(options, budget, starts)
    if not over(total_kl(chosen, inheritable(chosen, shares)), budget):
        return chosen
    chosen = settled(options, chosen, budget, shares, starts, partial(_within, starts=starts))
    if sum([len(group) > 1 for group in options]) > SEARCHED:
        return chosen
    return searched(options, budget, shares, starts, chosen)


def _within(options: Options, budget: float, starts: Starts) -> list[Candidate]:
    """The cheapest choice with a KL of `budget` at most, as each candidate states it. What is paid once has
    to be worth it, so the best choices with and without it are compared."""
    found = [cheapest(options, budget)]
    if any(c.computes for c in found[0]):
        found += _fitting([[c for c in group if not c.computes] for group in options], budget)
    if any(c.mends for group in options for c in group):
        plain = [[c for c in group if not c.mends] for group in options]
        found += _fitting(plain, budget)
        found += _fitting([[c for c in group if not c.computes] for group in plain], budget)
    return min(found, key=lambda chosen: starts.total(chosen))


def _fitting(options: Options, budget: float) -> list[list[Candidate]]:
    """The cheapest choice among these, if there is one: every chunk has an option and the closest ones
    together keep the budget."""
    if not all(options) or over(sum([min([c.kl for c in group]) for group in options]), budget):
        return []
    return [cheapest(options, budget)]


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
