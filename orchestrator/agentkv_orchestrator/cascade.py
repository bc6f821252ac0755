"""What is computed behind KV that is off inherits that: the KL of a choice depends on the choices in front
of it.

Front to back, with F the KL of all in front, a chunk that stands or is brought adds its own KL, one that is
computed adds its share of the window times F. So a stale antecedent is worth more the more is computed
behind it, and refreshing a dependent before what it depends on is worth nothing: both come out of one sum.
"""

from collections.abc import Callable, Iterator, Sequence
from math import ceil
from typing import Any, NamedTuple

from .knapsack import Options, over
from .site import Candidate

_ROUNDS = 4
"""How often a choice is tried that is charged what the last one would have inherited."""
_CLOSE = 0.01
"""A choice that is this share above what none can be below is not improved."""
_STATES = 512
"""Partial choices that a search keeps; those of a dozen chunks are seldom more."""


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

    def total(self, chosen: Sequence[Candidate]) -> float:
        """Price of these choices with all that is paid once."""
        left = self.besides(chosen)
        return sum([c.price for c in chosen]) + self.forward - left.forward + self.mend - left.mend


def inheritable(chosen: Sequence[Candidate], shares: Sequence[float]) -> list[float]:
    """By chunk, the KL that it is computed with, if it is computed, because of what stands in front of it."""
    found, front = [], 0.0
    for c, share in zip(chosen, shares, strict=True):
        found.append(_inherits(share, front))
        front += c.kl + found[-1] * c.computes
    return found


def _inherits(share: float, front: float) -> float:
    """Rounded up, as plans carry six digits and must not exceed a budget by rounding."""
    return ceil(share * front * 1e6) / 1e6 if front else 0.0


def total_kl(chosen: Sequence[Candidate], kls: Sequence[float]) -> float:
    """KL of these choices with what is inherited. kls: what each would inherit, if computed."""
    return sum([c.kl + kl * c.computes for c, kl in zip(chosen, kls, strict=True)])


def heirs(chosen: Sequence[Candidate], shares: Sequence[float]) -> list[Candidate]:
    """The same choices, what is computed with the KL that it inherits."""
    return [
        c._replace(kl=kl, steps=(*c.steps[:-1], c.steps[-1]._replace(kl=kl))) if kl and c.computes else c
        for c, kl in zip(chosen, inheritable(chosen, shares), strict=True)
    ]


def settled(
    options: Options,
    chosen: Sequence[Candidate],
    budget: float,
    shares: Sequence[float],
    starts: Starts,
    within: Callable[[Options, float], list[Candidate]],
) -> list[Candidate]:
    """A cheap choice that fits with what it inherits.

    chosen: the best one as long as nothing is inherited; nothing that fits is cheaper. within: the cheapest
    choice inside a budget, as each candidate states its KL. Every chunk is charged what
    it would inherit behind the last choice; where choices come back, the budget shrinks by what was over. If
    nothing fits, all is computed that is off, and then nothing is inherited.
    """
    best = [min(group, key=lambda c: (c.kl, c.price)) for group in options]
    allowance, tried, enough = budget, set[tuple[float, ...]](), starts.total(chosen) * (1 + _CLOSE)
    kls = inheritable(chosen, shares)
    for _ in range(_ROUNDS):
        if tuple(kls) in tried:
            allowance = max(0.0, allowance - total_kl(chosen, kls) + budget)
        tried.add(tuple(kls))
        charged = [
            [c._replace(kl=kl) if c.computes else c for c in group] if kl else group
            for group, kl in zip(options, kls, strict=True)
        ]
        chosen = [c._replace(kl=0.0) if c.computes and c.kl else c for c in within(charged, allowance)]
        kls = inheritable(chosen, shares)
        if not over(total_kl(chosen, kls), budget):
            best = min(best, chosen, key=starts.total)
            if starts.total(best) <= enough or tuple(kls) in tried:
                break
    return best


class _State(NamedTuple):
    """A choice for the chunks in front."""

    kl: float
    price: float
    """With all that is paid once, as far as it is needed."""
    computes: bool
    mends: bool
    picks: Any
    """The last candidate and the picks before it, as a pair; None in the beginning."""


def searched(
    options: Options, budget: float, shares: Sequence[float], starts: Starts, best: list[Candidate]
) -> list[Candidate]:
    """The cheapest choice there is, if `best`, which fits, is not; front to back, keeping of all partial
    choices those that no other beats in price and KL. Exact as long as these are few; of more the cheapest
    go on."""
    bound = starts.total(best) * (1 - 1e-9)
    to_come = sum(min(c.price for c in group) for group in options)
    states = [_State(0.0, 0.0, False, False, None)]
    for group, share in zip(options, shares, strict=True):
        to_come -= min(c.price for c in group)
        states = _undominated(
            state
            for s in states
            for c in group
            for state in (_with(s, c, share, starts),)
            if not over(state.kl, budget) and state.price + to_come < bound
        )
    last = min(states, key=lambda s: (s.price, s.kl), default=None)
    return best if last is None else _picked(last)


def _with(s: _State, c: Candidate, share: float, starts: Starts) -> _State:
    once = starts.forward * (c.computes and not s.computes) + starts.mend * (c.mends and not s.mends)
    kl = s.kl + (_inherits(share, s.kl) if c.computes else c.kl)
    return _State(kl, s.price + c.price + once, s.computes or c.computes, s.mends or c.mends, (c, s.picks))


def _undominated(states: Iterator[_State]) -> list[_State]:
    """Those that no other beats in price and KL; those that have paid for a forward are compared among
    themselves."""
    fronts: dict[tuple[bool, bool], list[_State]] = {}
    for s in sorted(states, key=lambda s: (s.kl, s.price)):
        front = fronts.setdefault((s.computes, s.mends), [])
        if not front or s.price < front[-1].price:
            front.append(s)
    found = [s for front in fronts.values() for s in front]
    return sorted(found, key=lambda s: (s.price, s.kl))[:_STATES] if len(found) > _STATES else found


def _picked(state: _State) -> list[Candidate]:
    chosen: list[Candidate] = []
    link = state.picks
    while link is not None:
        chosen.append(link[0])
        link = link[1]
    return chosen[::-1]
