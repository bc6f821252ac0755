"""What is computed behind KV that is off inherits that: the KL of a choice depends on the choices in front
of it.

Front to back, with F the KL of all in front, a chunk that stands or is brought adds its own KL, one that is
computed adds its share of the window times F. So a stale antecedent is worth more the more is computed
behind it, and refreshing a dependent before what it depends on is worth nothing: both come out of one sum.
"""

from collections.abc import Callable, Sequence
from math import ceil

import numpy as np

from .options import Flags, Floats, Options, Picks, Starts, of, over
from .search import Limits, inherited, search
from .site import Candidate

_ROUNDS = 4
"""How often a choice is tried that is charged for what it would inherit."""
_CLOSE = 0.02
"""A choice that is this share above what none can be below, or below the budget, is not improved."""
_STATES = 512
"""Partial choices that a search keeps; those of a dozen chunks are seldom more."""


def inheritable(kls: Floats, computes: Flags, shares: Floats) -> Floats:
    """By chunk, the KL that it is computed with, if it is computed, because of what stands in front of it.

    [chunks] each. kls: as a choice states them, 0 of what is computed; computes: whether it is.
    """
    fronts, front = [], 0.0
    for kl, computed, share in zip(kls.tolist(), computes.tolist(), shares.tolist(), strict=True):
        fronts.append(front)
        front += kl + ceil(share * front * 1e6) / 1e6 if computed else kl  # as `inherited`
    return inherited(shares, np.array(fronts))


def inherits(options: Options, picks: Picks, shares: Floats) -> Floats:
    """`inheritable` of a choice."""
    return inheritable(of(options.kl, picks), of(options.computes, picks), shares)


def total_kl(options: Options, picks: Picks, heard: Floats) -> float:
    """KL of a choice with what is inherited. heard: what each would inherit, if computed."""
    return float(of(options.kl, picks).sum() + heard[of(options.computes, picks)].sum())


def heirs(chosen: Sequence[Candidate], shares: Floats) -> list[Candidate]:
    """The same choices, what is computed with the KL that it inherits."""
    kls, computes = np.array([c.kl for c in chosen]), np.array([c.computes for c in chosen], dtype=np.bool_)
    if not computes.any() or not kls.any():
        return list(chosen)
    return [
        c.inheriting(kl) if kl and c.computes else c
        for c, kl in zip(chosen, inheritable(kls, computes, shares).tolist(), strict=True)
    ]


def settled(
    options: Options,
    picks: Picks,
    heard: Floats,
    budget: float,
    shares: Floats,
    starts: Starts,
    within: Callable[[Options, float], Picks],
) -> Picks:
    """A cheap choice that fits with what it inherits.

    picks: the best one as long as nothing is inherited; nothing that fits is cheaper. heard: what each would
    inherit then, if computed. within: the cheapest choice inside a budget, as each candidate states its KL.

    Every chunk is charged for what it would inherit. Behind `picks` that is too much, by as much as they are
    over the budget; from then on a charge goes half the way to what its choice makes of it. Where a choice is
    over twice, the budget shrinks by as much. If nothing fits, all is computed that is off, and then nothing
    is inherited.
    """
    best = options.closest()
    price, enough = options.total(best, starts), options.total(picks, starts) * (1 + _CLOSE)
    charge = heard * budget / total_kl(options, picks, heard)
    allowance, was_over = budget, False
    for _ in range(_ROUNDS):
        picks = within(options.charged(charge), allowance)
        heard = inherits(options, picks, shares)
        kl, total = total_kl(options, picks, heard), options.total(picks, starts)
        if over(kl, budget):
            allowance *= budget / kl if was_over else 1.0
        elif total < price:
            best, price = picks, total
            if price <= enough or kl >= budget * (1 - _CLOSE):
                break
        was_over = over(kl, budget)
        charge = (charge + heard) / 2
    return best


def searched(options: Options, budget: float, shares: Floats, starts: Starts, best: Picks) -> Picks:
    """The cheapest choice there is, if `best`, which fits, is not."""
    limits = Limits(budget, options.total(best, starts) * (1 - 1e-9))
    settled_rows = ~options.open & ~options.computes[:, 0]
    # Neighbours that leave no choice are one row: they only add up.
    heads = (~settled_rows | ~np.append(False, settled_rows[:-1])).nonzero()[0]
    rows = options
    if len(heads) < len(best):
        rows = Options(*(np.add.reduceat(np.ascontiguousarray(table), heads) for table in options))
    found = search(rows, shares[heads], starts, limits, _STATES)
    if found is None:
        return best
    picks = np.zeros_like(best)
    picks[heads] = found
    return picks
