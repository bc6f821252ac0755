"""What may be done for each chunk, as tables: a row a chunk, a column a candidate."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .site import Candidate

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Picks = npt.NDArray[np.intp]

_EPSILON = 1e-9
"""Sums of figures rounded to six digits differ by less."""


def over(kl: float, budget: float) -> bool:
    """More than the budget, and not by a rounding."""
    return kl > budget + _EPSILON


def room(budget: float) -> float:
    """The most that is not over this budget."""
    return budget + _EPSILON


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


class Options(NamedTuple):
    """[chunks, candidates] each; what is missing where a chunk has fewer candidates costs infinitely much."""

    price: Floats
    kl: Floats
    """As each candidate states it: 0 of one that is computed, unless `charged` says otherwise."""
    computes: Flags
    mends: Flags

    @classmethod
    def of(cls, groups: Sequence[Sequence[Candidate]]) -> "Options":
        counts = np.array([len(group) for group in groups], dtype=np.intp)
        there = np.arange(counts.max(initial=1)) < counts[:, None]
        every = [c for group in groups for c in group]
        # By column in memory: what is asked most is the least of every row.
        price, kl = (np.full(there.shape, np.inf, order="F") for _ in range(2))
        computes, mends = (np.zeros(there.shape, dtype=np.bool_, order="F") for _ in range(2))
        price[there] = [c.price for c in every]
        kl[there] = [c.kl for c in every]
        computes[there] = [c.computes for c in every]
        mends[there] = [c.mends for c in every]
        return cls(price, kl, computes, mends)

    @property
    def open(self) -> Flags:
        """By chunk, whether there is a choice. [chunks]"""
        several: Flags = np.isfinite(self.price).sum(axis=1) > 1
        return several

    def without(self, out: Flags) -> "Options":
        """The same, some of them out of the question. out: [chunks, candidates]"""
        return self._replace(price=np.where(out, np.inf, self.price), kl=np.where(out, np.inf, self.kl))

    def charged(self, kl: Floats) -> "Options":
        """The same, each chunk with this KL where it is computed. kl: [chunks]"""
        return self._replace(kl=np.where(self.computes, kl[:, None], self.kl))

    def at(self, rows: Picks) -> "Options":
        """Those of some chunks."""
        return Options(self.price[rows], self.kl[rows], self.computes[rows], self.mends[rows])

    def costs(self, rate: float) -> Floats:
        """[chunks, candidates]: price, and the KL at `rate` each."""
        return self.price + rate * self.kl if rate else self.price

    def cheapest(self) -> Picks:
        """The least price of each chunk; of equal ones the closest."""
        return first(self.price, self.kl)

    def closest(self) -> Picks:
        """The least KL of each chunk; of equal ones the cheapest."""
        return first(self.kl, self.price)

    def total(self, picks: Picks, starts: Starts) -> float:
        """Price of a choice with all that is paid once."""
        once = starts.forward * of(self.computes, picks).any()
        if starts.mend:  # 0 where nothing mends
            once += starts.mend * of(self.mends, picks).any()
        return float(of(self.price, picks).sum() + once)


def first(table: Floats, then: Floats) -> Picks:
    """By row, the least of one table; of equal ones the least of the other."""
    found: Picks = np.where(table == table.min(axis=1, keepdims=True), then, np.inf).argmin(axis=1)
    return found


def of(table: npt.NDArray[Any], picks: Picks) -> npt.NDArray[Any]:
    """What is picked of each row."""
    return table[_rows(len(picks)), picks]


@lru_cache(maxsize=16)  # asked for about a hundred times a choice
def _rows(count: int) -> Picks:
    rows = np.arange(count)
    rows.flags.writeable = False
    return rows
