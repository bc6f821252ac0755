"""Every choice worth a look, chunk by chunk: of partial choices those that no other beats in price and KL."""

from typing import NamedTuple

import numpy as np

from .options import Floats, Options, Picks, Starts, room


class Limits(NamedTuple):
    """What a choice has to stay below.

    kl, price: of the chunks that are decided already. rate: price of a KL, with which what is open yet is
    judged; 0 judges it by its price.
    """

    budget: float
    below: float
    """What the best known choice costs."""
    rate: float = 0.0
    kl: float = 0.0
    price: float = 0.0


class _States(NamedTuple):
    """Choices for the chunks in front; [states] each."""

    kl: Floats
    price: Floats
    """With all that is paid once, as far as it is needed."""
    paid: Picks
    """What that is: 1 a forward, 2 one to mend."""

    def at(self, which: Picks) -> "_States":
        return _States(self.kl[which], self.price[which], self.paid[which])


def inherited(shares: Floats | float, fronts: Floats | float) -> Floats:
    """KL that a chunk with this share of the window's is computed with behind so much of it.

    Rounded up, as plans carry six digits and must not exceed a budget by rounding.
    """
    found: Floats = np.ceil(np.multiply(shares, fronts) * 1e6) / 1e6
    return found


def search(options: Options, shares: Floats, starts: Starts, limits: Limits, most: int) -> Picks | None:
    """The cheapest choice below the limits, None where there is none; exact as long as no more than `most`
    partial choices are worth keeping. Of more the most promising go on.

    What a choice costs at `rate` a KL, the least of every open chunk included, bounds what becomes of it:
    with the rate of the linear relaxation most are out at once (Pisinger 1995).
    """
    costs = options.costs(limits.rate)
    least = costs.min(axis=1)
    to_come = np.append(np.cumsum(least[::-1])[::-1][1:], 0.0)
    if limits.rate:  # whose budget is finite
        to_come -= limits.rate * limits.budget
    states = _States(np.array([limits.kl]), np.array([limits.price]), np.zeros(1, dtype=np.intp))
    pays = int(starts.forward > 0), 2 * int(starts.mend > 0)
    once = np.array([0.0, starts.forward, starts.mend, starts.forward + starts.mend])
    trail: list[tuple[Picks, Picks]] = []
    needs = options.computes * pays[0] + options.mends * pays[1]
    for i, share in enumerate(shares.tolist()):
        paid = states.paid[:, None] | needs[i]
        kl = states.kl[:, None] + options.kl[i]
        if share:
            kl += options.computes[i] * inherited(share, states.kl)[:, None]
        price = states.price[:, None] + options.price[i]
        if once[-1]:
            price += once[paid - states.paid[:, None]]
        judged = price + limits.rate * kl if limits.rate else price
        fits = (kl <= room(limits.budget)) & (judged < limits.below - to_come[i])
        front, column = fits.nonzero()
        states = _States(kl[fits], price[fits], paid[fits])
        if len(front) > 1:
            kept = _undominated(states, limits.rate, most)
            states, front, column = states.at(kept), front[kept], column[kept]
        trail.append((front, column))
    best = np.lexsort((states.kl, states.price))[:1]
    return _traced(trail, best[0]) if (states.price[best] < limits.below).any() else None


def _undominated(states: _States, rate: float, most: int) -> Picks:
    """Those that no other beats in price and KL; those that have paid for a forward are compared among
    themselves."""
    order = np.lexsort((states.price, states.kl))
    kept = [
        _falling(states.price, order[states.paid[order] == paid])
        for paid in range(states.paid.max(initial=0) + 1)
    ]
    found = np.concatenate(kept)
    if len(found) > most:
        costs = states.price[found] + rate * states.kl[found]
        found = found[np.argsort(costs, kind="stable")[:most]]
    return found


def _falling(price: Floats, order: Picks) -> Picks:
    """Of these, each that is cheaper than all in front of it."""
    prices = price[order]
    lower = np.ones(len(order), dtype=np.bool_)
    lower[1:] = prices[1:] < np.minimum.accumulate(prices)[:-1]
    return order[lower]


def _traced(trail: list[tuple[Picks, Picks]], state: np.intp) -> Picks:
    """The picks that led to a state."""
    picks: list[int] = []
    for front, column in reversed(trail):
        picks.append(column[state])
        state = front[state]
    return np.array(picks[::-1], dtype=np.intp)
