"""One candidate for every chunk, by policy."""

from collections.abc import Sequence

from .candidates import clean_view, keep, prefill
from .knapsack import Options, cheapest
from .policy import Policy
from .site import Candidate, Site


def choose(sites: Sequence[Site], options: Options, policy: Policy, start: float) -> list[Candidate]:
    """Pick from each chunk's candidates; what exact picks is always among them.

    start: ms that a forward takes before its first token, once for all that is computed.
    """
    if policy.name == "exact":
        return _exact(sites)
    if policy.name == "fast":
        return [_fastest(candidates) for candidates in options]
    return _balanced(options, policy.allowance, start)


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
    held = [c for c in candidates if not c.computes]
    return min(held or candidates, key=lambda c: (c.price, c.kl))


def _balanced(options: Options, budget: float, start: float) -> list[Candidate]:
    """The cheapest choice inside the budget. A forward that nothing else needs has to be worth its start."""
    chosen = cheapest(options, budget)
    if not any(c.computes for c in chosen):
        return chosen
    held = [[c for c in candidates if not c.computes] for candidates in options]
    if not all(held) or sum(min(c.kl for c in candidates) for candidates in held) > budget:
        return chosen
    resting = cheapest(held, budget)
    return resting if sum(c.price for c in resting) < sum(c.price for c in chosen) + start else chosen


def why_not(other: Candidate, chosen: Candidate, policy: Policy, start: float) -> str:
    """Why a candidate was passed over, in words. start: what a forward would cost on top, if none runs."""
    ms, mine = other.ms + start * other.computes, chosen.ms
    if policy.name == "exact":
        return "not bit for bit what a prefix cache gives"
    if policy.name == "fast":
        return "slower" if ms >= mine else "fast computes only what nothing holds"
    if ms < mine:
        return f"{mine - ms:.3g} ms faster, but its KL of {other.kl:.3g} does not fit the budget"
    if other.kl >= chosen.kl:
        return "neither faster nor closer"
    return f"closer, but {ms - mine:.3g} ms slower and the budget holds without it"
