"""Every choice worth a look, chunk by chunk: of partial choices those that no other beats in price and KL.

Seldom more than a few dozen at a time: in plain numbers, as arrays of so few take longer to call than to add.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from math import ceil, inf
from operator import itemgetter
from typing import Any, NamedTuple

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


_State = tuple[float, float, int, Any, int]
"""Choices for the chunks in front. kl. price: with all that is paid once, as far as it is needed. paid: what
that is, 1 a forward, 2 one to mend. before, pick: the state it goes on from, and with what."""
_Pick = tuple[int, float, float, bool, int]
"""Of one chunk: number, KL, price, whether it computes, what it needs paid."""
_CLASSES = 4
"""Of what is paid."""
_MANY = 8
"""States from which on it pays to look for picks that lead nowhere."""
_kl, _price = itemgetter(0), itemgetter(1)


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
    least = options.costs(limits.rate).min(axis=1).tolist()
    to_come = [*accumulate(reversed(least[1:]), initial=0.0)][::-1]
    if limits.rate:  # whose budget is finite
        to_come = [cost - limits.rate * limits.budget for cost in to_come]
    needs = options.computes * int(starts.forward > 0) + options.mends * 2 * int(starts.mend > 0)
    tables = (options.kl, options.price, options.computes, needs)
    chunks = zip(*(table.tolist() for table in tables), shares.tolist(), strict=True)
    once = 0.0, starts.forward, starts.mend, starts.forward + starts.mend
    states: list[_State] = [(limits.kl, limits.price, 0, None, 0)]
    for (*columns, share), cost in zip(chunks, to_come, strict=True):
        picks = [(i, *pick) for i, pick in enumerate(zip(*columns, strict=True)) if pick[0] < inf]
        if len(states) > _MANY:
            picks = _unbeaten(picks)
        found = _going_on(states, picks, share, once, limits, limits.below - cost)
        states = _undominated(found, limits.rate, most)
    best = min(states, key=itemgetter(1, 0), default=None)
    return _traced(best) if best is not None and best[1] < limits.below else None


def _going_on(
    states: Iterable[_State],
    picks: Iterable[_Pick],
    share: float,
    once: Sequence[float],
    limits: Limits,
    below: float,
) -> list[_State]:
    """Every state with every pick of the next chunk that stays inside the limits."""
    found, fitting, rate = list[_State](), room(limits.budget), limits.rate
    for state in states:
        front, spent, paid, _, _ = state
        for pick, kl, price, computes, needs in picks:
            price += spent
            kl += front
            if computes and front:
                kl += ceil(share * front * 1e6) / 1e6  # as `inherited`
            if needs:
                price += once[needs & ~paid]
            if price + rate * kl < below and kl <= fitting:
                found.append((kl, price, paid | needs, state, pick))
    return found


def _unbeaten(picks: Iterable[_Pick]) -> list[_Pick]:
    """Those that no other of their kind beats in price and KL: what the others lead to is beaten as well."""
    kept, least = list[_Pick](), dict[tuple[bool, int], float]()
    for pick in sorted(picks, key=itemgetter(1, 2)):
        _, _, price, computes, needs = pick
        if price < least.get((computes, needs), inf):
            least[computes, needs] = price
            kept.append(pick)
    return sorted(kept)


def _undominated(states: list[_State], rate: float, most: int) -> list[_State]:
    """Those that no other beats in price and KL; those that have paid for a forward are compared among
    themselves."""
    kept: list[list[_State]] = [[] for _ in range(_CLASSES)]
    least = [inf] * _CLASSES
    states.sort(key=_price)
    states.sort(key=_kl)  # of equal ones the cheapest is first
    for state in states:
        if state[1] < least[state[2]]:
            least[state[2]] = state[1]
            kept[state[2]].append(state)
    found = list(chain.from_iterable(kept))
    return found if len(found) <= most else sorted(found, key=lambda s: s[1] + rate * s[0])[:most]


def _traced(state: _State) -> Picks:
    """The picks that led to a state."""
    picks: list[int] = []
    while state[3] is not None:
        picks.append(state[4])
        state = state[3]
    return np.array(picks[::-1], dtype=np.intp)
