"""What only the future tells: for the clairvoyant arm, and for the bound that no plan beats."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from math import inf

from ..cost import CostTable, Timed
from ..trace import Trace

_WAYS: tuple[Timed, ...] = ("load", "place_canonical")
"""How a chunk comes from the store at best."""


class Future:
    """When each chunk comes back into a window. `now` is the turn that is being played."""

    def __init__(self, trace: Trace) -> None:
        self.now = 0
        self._returns: dict[str, list[int]] = defaultdict(list)
        last: dict[str, set[str]] = {}
        met: set[str] = set()
        for at, turn in enumerate(trace.turns):
            there = last.get(turn.window, set())
            here = {m.id for m in turn.messages}
            for chunk in here - there:
                if chunk in met:
                    self._returns[chunk].append(at)
            last[turn.window] = here | ({turn.answer.id} if turn.answer else set())
            met |= last[turn.window]

    def next_return(self, chunk: str) -> float:
        """The turn behind this one in which it comes back; infinity for never."""
        turns = self._returns.get(chunk, [])
        at = bisect_right(turns, self.now)
        return turns[at] if at < len(turns) else inf

    def returns(self, chunk: str) -> bool:
        """Whether it ever does."""
        return self.next_return(chunk) < inf


def bound(trace: Trace, costs: CostTable) -> float:
    """Milliseconds that no plan beats, whatever its store and its KL: each content is computed once, all that
    comes back is loaded, and what stands is free.

    An order-free message may stand at the front of its window, where computing it takes least.
    """
    met: set[str] = set()
    last: dict[str, set[str]] = {}
    prefill, total = costs.of("prefill"), 0.0
    for turn in trace.turns:
        there, rows, first, computes = last.get(turn.window, set()), 0, 0, False
        seen = set(there)
        for m in turn.messages:
            first = first if m.order_free else rows + m.tokens
            if m.id not in met:
                total += prefill.more(m.tokens, first if m.order_free else rows)
                computes = True
                met.add(m.id)
            elif m.id not in seen:
                total += min(prefill.more(m.tokens), *(costs.time(way, m.tokens) for way in _WAYS))
            seen.add(m.id)
            rows += m.tokens
        total += prefill.base * computes
        last[turn.window] = {m.id for m in turn.messages}
        if turn.answer is not None:
            met.add(turn.answer.id)
            last[turn.window].add(turn.answer.id)
    return total
