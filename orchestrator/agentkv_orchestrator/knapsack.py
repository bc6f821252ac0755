"""One option of every chunk, cheapest in all, within a budget: the multiple-choice knapsack.

What the linear relaxation leaves open (one step, seldom more than a few chunks that matter) is searched;
everything else is settled by its bound.
"""

from typing import NamedTuple

import numpy as np

from .options import Floats, Options, Picks, Starts, first, of, over, room
from .search import Limits, search

_CLOSE = 0.01
"""A solution that is this share above the bound is not searched for a better one."""
_CHUNKS, _STATES = 8, 64
"""How far a search goes: chunks that are left open, partial solutions that are kept."""


def cheapest(options: Options, budget: float) -> Picks:
    """An option of each chunk, with a KL of `budget` at most in all and a price near the least there is.

    The closest options of all chunks together have to fit.
    """
    relaxed = _relaxed(options, budget)
    if relaxed.rate == 0:
        return relaxed.picks
    best = _give_back(options, relaxed.picks, budget)
    price = _price(options, best)
    for improved in (_in_one_step, _searched):
        if price <= relaxed.bound * (1 + _CLOSE):
            break
        found = _give_back(options, improved(options, best, relaxed, budget), budget)
        cost = _price(options, found)
        if cost < price:
            best, price = found, cost
    return best


class _Relaxed(NamedTuple):
    picks: Picks
    """Fits; off the best by one step at most."""
    bound: float
    """No choice that fits costs less."""
    rate: float
    """Price of a KL where the budget ends; 0 where it is never reached."""
    short: Picks
    """The choice before the last step, which does not fit."""


def _relaxed(options: Options, budget: float) -> _Relaxed:
    """Start from the cheapest of each chunk and buy KL where it costs least, until the budget holds.

    Only the corners of a chunk's lower convex hull in (price, KL) can be the best buy, and along a hull each
    step buys less than the one before. So all steps of all chunks, sorted by what they buy, are the order of
    the best buys; with a fraction of the last one the solution of the linear relaxation.
    """
    picks = options.cheapest()
    kl, price = of(options.kl, picks).sum(), _price(options, picks)
    if not over(kl, budget):
        return _Relaxed(picks, price, 0.0, picks)
    steps = steps_of(options, picks)
    if not len(steps.row):
        return _Relaxed(picks, price, 0.0, picks)
    kls, prices = kl - steps.saved.cumsum(), price + steps.paid.cumsum()
    last = min(int((kls > room(budget)).sum()), len(kls) - 1)
    picks[steps.row[:last]] = steps.option[:last]  # of several steps of a chunk the last one counts
    short = picks.copy()
    picks[steps.row[last]] = steps.option[last]
    rate = steps.paid[last] / steps.saved[last]
    bound = prices[last] - steps.paid[last] + rate * (kls[last] + steps.saved[last] - budget)
    return _Relaxed(picks, float(bound), float(rate), short)


def _in_one_step(options: Options, _: Picks, relaxed: _Relaxed, budget: float) -> Picks:
    """What does not fit without the last step, with the cheapest single step after which it does."""
    picks = relaxed.short.copy()
    price, kl = of(options.price, picks), of(options.kl, picks)
    fits = kl.sum() - kl[:, None] + options.kl <= room(budget)
    paid = np.where(fits, options.price - price[:, None], np.inf)
    row, option = np.unravel_index(paid.argmin(), paid.shape)
    picks[row] = option
    return picks


class Steps(NamedTuple):
    """From one option of a chunk to a closer one; [steps] each, the best buys first."""

    row: Picks
    option: Picks
    """Where it leads."""
    saved: Floats
    """KL"""
    paid: Floats
    """Price"""


def steps_of(options: Options, start: Picks) -> Steps:
    """Along the lower convex hulls of all chunks at once. start: the cheapest option of each."""
    found: list[tuple[Picks, Picks, Floats, Floats, Floats]] = []
    row, at, rate = np.arange(len(start)), start, np.zeros(len(start))
    price, kl = options.price, options.kl
    while len(row):
        paid, saved = price - of(price, at)[:, None], of(kl, at)[:, None] - kl
        rates = np.divide(paid, saved, out=np.full_like(paid, np.inf), where=saved > 0)
        best = rates.min(axis=1)
        further = first(rates, kl)
        goes_on = np.isfinite(best)
        rate = np.maximum(rate, best)[goes_on]  # equal ones must not part by a rounding
        row, at = row[goes_on], further[goes_on]
        found.append((row, at, of(saved, further)[goes_on], of(paid, further)[goes_on], rate))
        price, kl = (table.T.compress(goes_on, axis=1).T for table in (price, kl))  # by column in memory
    rows, option, saved, paid, rates = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.lexsort((rows, rates))
    return Steps(rows[order], option[order], saved[order], paid[order])


def _give_back(options: Options, picks: Picks, budget: float) -> Picks:
    """Return what the last step overshot: the dearest chunks first, each as cheap as the rest allows."""
    price, kl = of(options.price, picks), of(options.kl, picks)
    spare = room(budget) - kl.sum()
    more = options.kl - kl[:, None]
    cheaper = (options.price < price[:, None]) | ((options.price == price[:, None]) & (more < 0))
    may = cheaper & (more <= spare)
    rows = may.any(axis=1).nonzero()[0]
    if not len(rows):
        return picks
    picks = picks.copy()
    for i in rows[np.argsort(-price[rows], kind="stable")].tolist():
        fits = (may[i] & (more[i] <= spare)).nonzero()[0]
        if len(fits):
            pick = fits[np.lexsort((options.kl[i, fits], options.price[i, fits]))[0]]
            picks[i], spare = pick, spare - more[i, pick]
    return picks


def _searched(options: Options, best: Picks, relaxed: _Relaxed, budget: float) -> Picks:
    """The best choice among those that could beat `best`.

    At the rate of the relaxation an option costs price + rate * KL, and the least of every chunk adds up to
    the bound. What a choice costs beyond that is its excess; it beats `best` only below the gap between the
    two, so most options are out at once and most chunks are decided (Pisinger 1995: the core).
    """
    costs = options.costs(relaxed.rate)
    excess = costs - costs.min(axis=1, keepdims=True)
    price = _price(options, best)
    near = excess < price - relaxed.bound
    several = (near.sum(axis=1) > 1).nonzero()[0]
    second = np.partition(excess[several], 1, axis=1)[:, 1] if len(several) else np.zeros(0)
    core = several[np.argsort(second, kind="stable")[:_CHUNKS]]
    picks = first(excess, options.price)
    decided = np.ones(len(picks), dtype=np.bool_)
    decided[core] = False
    limits = Limits(
        budget,
        price,
        relaxed.rate,
        float(of(options.kl, picks)[decided].sum()),
        float(of(options.price, picks)[decided].sum()),
    )
    found = search(options.without(~near).at(core), np.zeros(len(core)), Starts(0.0), limits, _STATES)
    if found is None:
        return best
    picks[core] = found
    return picks


def _price(options: Options, picks: Picks) -> float:
    return float(of(options.price, picks).sum())
