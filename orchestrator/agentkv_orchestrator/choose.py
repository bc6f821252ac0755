"""One candidate for every chunk, by policy."""

from collections.abc import Sequence
from typing import NamedTuple

from .candidates import clean_view, keep, prefill
from .knapsack import Options, cheapest, over
from .policy import Policy
from .site import Candidate, Site


class Starts(NamedTuple):
    """Milliseconds that are paid once, however many chunks need what they pay for."""

    forward: float
    """What a forward takes before its first token."""
    mend: float = 0.0
    """One forward more over what has to be computed anyway, before the rows that mend others run."""

    def of(self, candidate: Candidate) -> float:
        """What this choice needs paid."""
        return self.forward * candidate.computes + self.mend * candidate.mends

    def besides(self, chosen: Sequence[Candidate]) -> "Starts":
        """What these choices do not pay yet."""
        computes, mends = any(c.computes for c in chosen), any(c.mends for c in chosen)
        return Starts(0.0 if computes else self.forward, 0.0 if mends else self.mend)


def choose(sites: Sequence[Site], options: Options, policy: Policy, starts: Starts) -> list[Candidate]:
    """Pick from each chunk's candidates; what exact picks is always among them."""
    if policy.name == "exact":
        return _exact(sites)
    if policy.name == "fast":
        return [_fastest(candidates) for candidates in options]
    return _balanced(options, policy.allowance, starts)


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


def _balanced(options: Options, budget: float, starts: Starts) -> list[Candidate]:
    """The cheapest choice inside the budget. What is paid once has to be worth it, so the best choices with
    and without it are compared."""
    found = [cheapest(options, budget)]
    if any(c.computes for c in found[0]):
        found += _fitting([[c for c in group if not c.computes] for group in options], budget)
    if any(c.mends for group in options for c in group):
        plain = [[c for c in group if not c.mends] for group in options]
        found += _fitting(plain, budget)
        found += _fitting([[c for c in group if not c.computes] for group in plain], budget)
    return min(found, key=lambda chosen: _total(chosen, starts))


def _total(chosen: Sequence[Candidate], starts: Starts) -> float:
    left = starts.besides(chosen)
    return sum([c.price for c in chosen]) + starts.forward - left.forward + starts.mend - left.mend


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
