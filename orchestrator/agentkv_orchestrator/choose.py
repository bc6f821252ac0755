"""One candidate for every chunk, by policy."""

from collections.abc import Sequence
from itertools import pairwise

from .candidates import Candidate, Site, clean_view, keep, prefill
from .plan import Prefill
from .policy import Policy

_EPSILON = 1e-9
"""Sums of figures rounded to six digits differ by less."""

Options = Sequence[Sequence[Candidate]]


def over(kl: float, budget: float) -> bool:
    """More than the budget, and not by a rounding."""
    return kl > budget + _EPSILON


def choose(sites: Sequence[Site], options: Options, policy: Policy) -> list[Candidate]:
    """Pick from each chunk's candidates; what exact picks is always among them."""
    if policy.name == "exact":
        return _exact(sites)
    if policy.name == "fast":
        return [_fastest(candidates) for candidates in options]
    return _give_back(options, _within(options, policy.allowance), policy.allowance)


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
    held = [c for c in candidates if not isinstance(c.steps[-1], Prefill)]
    return min(held or candidates, key=_price)


def _within(options: Options, budget: float) -> list[Candidate]:
    """Start from the cheapest of each chunk and buy KL where it costs least time, until the budget holds.

    Only the corners of a chunk's lower convex hull in (ms, kl) can be the best buy, and along a hull each
    step buys less per ms than the one before. So all steps of all chunks, sorted by what they buy per ms, are
    the order of the best buys: the greedy solution of the multiple-choice knapsack, off by one step at most.
    """
    hulls = [_hull(candidates) for candidates in options]
    steps = [((a.kl - b.kl) / (b.ms - a.ms), i, b) for i, hull in enumerate(hulls) for a, b in pairwise(hull)]
    steps.sort(key=lambda step: (-step[0], step[1], step[2].ms))
    chosen = [hull[0] for hull in hulls]
    kl = sum(c.kl for c in chosen)
    for _, i, better in steps:
        if not over(kl, budget):
            break
        kl += better.kl - chosen[i].kl
        chosen[i] = better
    return chosen


def _hull(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Corners of the lower convex hull, from the cheapest to the closest."""
    hull: list[Candidate] = []
    for c in sorted(candidates, key=_price):
        if hull and c.kl >= hull[-1].kl:
            continue  # dearer and no closer
        while len(hull) > 1 and _slope(hull[-2], c) <= _slope(hull[-2], hull[-1]):
            hull.pop()
        hull.append(c)
    return hull


def _slope(a: Candidate, b: Candidate) -> float:
    return (b.kl - a.kl) / (b.ms - a.ms)


def _give_back(options: Options, chosen: Sequence[Candidate], budget: float) -> list[Candidate]:
    """Return what the last step overshot: the dearest chunks first, each as cheap as the rest allows."""
    best = list(chosen)
    kl = sum(c.kl for c in best)
    for i in sorted(range(len(best)), key=lambda i: (-best[i].ms, i)):
        others = kl - best[i].kl
        best[i] = min((c for c in options[i] if not over(others + c.kl, budget)), key=_price, default=best[i])
        kl = others + best[i].kl
    return best


def _price(candidate: Candidate) -> tuple[float, float]:
    return candidate.ms, candidate.kl


def why_not(other: Candidate, chosen: Candidate, policy: Policy) -> str:
    """Why a candidate was passed over, in words."""
    if policy.name == "exact":
        return "not bit for bit what a prefix cache gives"
    if policy.name == "fast":
        return "slower" if other.ms >= chosen.ms else "fast computes only what nothing holds"
    if other.ms < chosen.ms:
        return f"{chosen.ms - other.ms:.3g} ms faster, but its KL of {other.kl:.3g} does not fit the budget"
    if other.kl >= chosen.kl:
        return "neither faster nor closer"
    return f"closer, but {other.ms - chosen.ms:.3g} ms slower and the budget holds without it"
