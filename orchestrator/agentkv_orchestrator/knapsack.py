"""One option of every group, cheapest in all, within a budget: the multiple-choice knapsack.

Groups are the chunks of a window, an option has a price (ms) and a KL. What the linear relaxation leaves open
(one step, seldom more than a few groups that matter) is searched; everything else is settled by its bound.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from .site import Candidate

_EPSILON = 1e-9
"""Sums of figures rounded to six digits differ by less."""
_CLOSE = 0.01
"""A solution that is this share above the bound is not searched for a better one."""
_GROUPS, _STATES = 24, 96
"""How far a search goes: groups that are left open, partial solutions that are kept."""

Options = Sequence[Sequence[Candidate]]
_cost = attrgetter("price", "kl")


def over(kl: float, budget: float) -> bool:
    """More than the budget, and not by a rounding."""
    return kl > budget + _EPSILON


def cheapest(options: Options, budget: float) -> list[Candidate]:
    """An option of each group, with a KL of `budget` at most in all and a price near the least there is.

    The closest options of all groups together have to fit.
    """
    relaxed = _relaxed(options, budget)
    if relaxed.rate == 0:
        return relaxed.chosen
    best = _give_back(options, relaxed.chosen, budget)
    if _price(best) > relaxed.bound * (1 + _CLOSE):
        best = _give_back(options, _searched(options, best, relaxed, budget), budget)
    return best


class _Relaxed(NamedTuple):
    chosen: list[Candidate]
    """Fits; off the best by one step at most."""
    bound: float
    """No choice that fits costs less."""
    rate: float
    """Price of a KL where the budget ends; 0 where it is never reached."""


def _relaxed(options: Options, budget: float) -> _Relaxed:
    """Start from the cheapest of each group and buy KL where it costs least, until the budget holds.

    Only the corners of a group's lower convex hull in (price, KL) can be the best buy, and along a hull each
    step buys less than the one before. So all steps of all groups, sorted by what they buy, are the order of
    the best buys; with a fraction of the last one the solution of the linear relaxation.
    """
    chosen = [group[0] if len(group) == 1 else min(group, key=_cost) for group in options]
    kl, price = sum([c.kl for c in chosen]), _price(chosen)
    if not over(kl, budget):
        return _Relaxed(chosen, price, 0.0)
    hulls = [_hull(group) for group in options]
    steps = [
        ((b.price - a.price) / (a.kl - b.kl), i, b) for i, hull in enumerate(hulls) for a, b in pairwise(hull)
    ]
    steps.sort(key=lambda step: (step[0], step[1], step[2].price))
    rate = bound = 0.0
    for rate, i, better in steps:
        bound = price + rate * (kl - budget)
        kl, price = kl + better.kl - chosen[i].kl, price + better.price - chosen[i].price
        chosen[i] = better
        if not over(kl, budget):
            break
    return _Relaxed(chosen, bound, rate)


def _hull(group: Sequence[Candidate]) -> list[Candidate]:
    """Corners of the lower convex hull, from the cheapest to the closest."""
    hull: list[Candidate] = []
    for c in sorted(group, key=_cost):
        if hull and c.kl >= hull[-1].kl:
            continue  # dearer and no closer
        while len(hull) > 1 and _slope(hull[-2], c) <= _slope(hull[-2], hull[-1]):
            hull.pop()
        hull.append(c)
    return hull


def _slope(a: Candidate, b: Candidate) -> float:
    return (b.kl - a.kl) / (b.price - a.price)


def _give_back(options: Options, chosen: Sequence[Candidate], budget: float) -> list[Candidate]:
    """Return what the last step overshot: the dearest groups first, each as cheap as the rest allows."""
    best = list(chosen)
    kl = sum([c.kl for c in best])
    several = [i for i, group in enumerate(options) if len(group) > 1]
    for i in sorted(several, key=lambda i: (-best[i].price, i)):
        mine = best[i]
        others = kl - mine.kl
        for c in options[i]:
            if c.price <= mine.price and not over(others + c.kl, budget) and _cost(c) < _cost(mine):
                mine = c
        best[i], kl = mine, others + mine.kl
    return best


class _Partial(NamedTuple):
    """A choice for the groups that were decided so far."""

    excess: float
    """By how much it keeps below what the relaxation could do."""
    kl: float
    price: float
    picks: tuple[Candidate, ...]


def _searched(options: Options, best: list[Candidate], relaxed: _Relaxed, budget: float) -> list[Candidate]:
    """The best choice among those that could beat `best`.

    At the rate of the relaxation an option costs price + rate * KL, and the least of every group adds up to
    the bound. What a choice costs beyond that is its excess; it beats `best` only below the gap between the
    two, so most options are out at once and most groups are decided (Pisinger 1995: the core).
    """
    gap, rate = _price(best) - relaxed.bound, relaxed.rate
    open_groups: list[tuple[float, int, list[tuple[float, Candidate]]]] = []
    found = list(best)
    for i, group in enumerate(options):
        if len(group) == 1:
            continue
        costs = [c.price + rate * c.kl for c in group]
        least_cost = min(costs)
        near = [
            (cost - least_cost, c) for cost, c in zip(costs, group, strict=True) if cost - least_cost < gap
        ]
        found[i] = near[0][1]
        if len(near) > 1:
            near.sort(key=lambda pair: (pair[0], pair[1].price))
            found[i] = near[0][1]
            open_groups.append((near[1][0], i, near))
    open_groups = sorted(open_groups, key=lambda group: group[:2])[:_GROUPS]
    fixed = {i for _, i, _ in open_groups}
    kl = sum(c.kl for i, c in enumerate(found) if i not in fixed)
    price = sum(c.price for i, c in enumerate(found) if i not in fixed)
    states = [_Partial(0.0, kl, price, ())]
    least = [min(c.kl for _, c in near) for _, _, near in open_groups]
    to_come = sum(least)
    for (_, _, near), closest in zip(open_groups, least, strict=True):
        to_come -= closest
        states = _front(_extended(states, near, gap, budget - to_come))
    last = min(states, key=lambda s: (s.price, s.kl), default=None)
    if last is None or last.price >= _price(best):
        return best
    for (_, i, _), pick in zip(open_groups, last.picks, strict=True):
        found[i] = pick
    return found


def _extended(
    states: Sequence[_Partial], near: Sequence[tuple[float, Candidate]], gap: float, budget: float
) -> Iterator[_Partial]:
    for s in states:
        for excess, c in near:
            if s.excess + excess < gap and not over(s.kl + c.kl, budget):
                yield _Partial(s.excess + excess, s.kl + c.kl, s.price + c.price, (*s.picks, c))


def _front(states: Iterator[_Partial]) -> list[_Partial]:
    """Those that no other beats in price and KL; of too many the most promising."""
    front: list[_Partial] = []
    for s in sorted(states, key=lambda s: (s.kl, s.price)):
        if not front or s.price < front[-1].price:
            front.append(s)
    return sorted(front, key=lambda s: s.excess)[:_STATES] if len(front) > _STATES else front


def _price(chosen: Sequence[Candidate]) -> float:
    return sum([c.price for c in chosen])
