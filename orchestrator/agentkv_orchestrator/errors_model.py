"""How far an approximate chunk takes the next token from a re-prefill: expected KL, and a bound that holds.

A window's KL is the sum over its chunks. A chunk's is a product of what was done to it, of its kind and of
its weight: what is read falls off with the distance to whoever reads, so a chunk weighs the integral of
1 / (near + distance) over its tokens. Cutting a chunk in two changes nothing. `agentkv calibrate` fits the
factors to measured windows. Everything is multiplied by `bound` in the end: of windows that were not used for
the fit, the share `level` stayed below what the model says.
"""

from collections.abc import Sequence
from math import log1p
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field
from xxhash import xxh3_128_hexdigest

from .diff import Change

_Floats = npt.NDArray[np.float64]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Where(NamedTuple):
    """Where a chunk stands. front, window: tokens in front of it, and of the window as it will be, without
    what is asked at its end. weighs: `ErrorModel.weight` of that, if it is known."""

    kind: str
    tokens: int
    front: int
    window: int
    weighs: float | None = None


class Curve(_Frozen):
    """scale · share^power."""

    scale: float = Field(ge=0)
    power: float = Field(gt=0)

    def of(self, share: float) -> float:
        return self.scale * share**self.power if share else 0.0


class Mended(_Frozen):
    """What computing a `share` of a chunk's rows leaves of its error."""

    share: float = Field(gt=0, le=1)
    leaves: float = Field(ge=0, le=1)


class ErrorModel(_Frozen):
    """Expected KL in nats by what is wrong with a chunk, if the whole window were so; times `bound`.

    Unknown keys raise.
    """

    level: float = Field(gt=0, lt=1)
    """Share of windows whose KL stays below the sum of their chunks' figures."""
    bound: float = Field(gt=0)
    """What takes the expected KL there."""
    slide: Curve
    """Antecedents left from the front. share: of the tokens that its KV was computed behind."""
    hole: Curve
    """Antecedents left from behind others that stayed."""
    inserted: Curve
    """Antecedents came. share: of the tokens that stand in front of it now."""
    recalled: Curve
    """The same for KV that is brought from the store: it comes back behind what it has not seen, which then
    stands next to it and not far in front."""
    reordered: float = Field(ge=0)
    """The antecedents stand in another order."""
    canonical: float = Field(ge=0)
    """KV that has seen nothing of what stands in front."""
    patch: float = Field(ge=0)
    """Canonical and a patch of rank `rank`, made for what stands in front."""
    orbit: float = Field(ge=0)
    """The same with the mean patch of other orders."""
    removal: float = Field(ge=0, le=1)
    """Share of the stale error that a removal patch leaves."""
    repair: Mended | None = None
    """Rows that the question attends most, computed again; None: not measured, so never planned."""
    estimated: Mended | None = None
    """As `repair`, with the patch on the other rows estimated; None where no estimator was measured."""
    rank: int = Field(gt=0)
    """Rank of the patches that the figures of patches are for."""
    rank_power: float = Field(ge=0)
    """A patch of another rank leaves (rank / this rank)^-rank_power of it."""
    first: float = Field(ge=0)
    """Of the whole window, when KV that was not computed there stands first: it lacks what takes the
    attention that the first tokens get."""
    near: float = Field(gt=0)
    """Tokens. What is nearer to the question than this weighs much the same."""
    kinds: dict[str, float]
    """Factor by kind of chunk; 1 for those that are not here."""

    @property
    def digest(self) -> str:
        """32 hex digits over all figures."""
        return xxh3_128_hexdigest(self.model_dump_json().encode())

    def weight(self, where: Where) -> float:
        """Share of the window's KL that this chunk makes; of chunks of factor 1, 1 in all."""
        if where.weighs is not None:
            return where.weighs
        behind = max(0, where.window - where.front - where.tokens)
        share = log1p(where.tokens / (self.near + behind)) / log1p(max(1, where.window) / self.near)
        return share * self.kinds.get(where.kind, 1.0)

    def weights(self, kinds: Sequence[str], tokens: _Floats, fronts: _Floats, window: int) -> list[float]:
        """`weight` of several chunks of one window. tokens, fronts: float64 [chunks]"""
        behind = np.maximum(0, window - fronts - tokens)
        shares = np.log1p(tokens / (self.near + behind)) / log1p(max(1, window) / self.near)
        return (shares * [self.kinds.get(kind, 1.0) for kind in kinds]).tolist()

    def stale(self, change: Change, where: Where) -> float:
        """KV that is left as it is although this has changed in front of it."""
        return self.left(change, where.front, self.weight(where))

    def left(self, change: Change, front: int, weight: float) -> float:
        """`stale` of a chunk of this weight behind so many tokens."""
        _, _, _, context, _, lost, _, gained, reordered, hole = change
        if not front:
            return self.bound * self.first if lost or reordered else 0.0
        kl = 0.0
        if lost:
            kl = (self.hole if hole else self.slide).of(lost / (lost + front - gained))
        if gained:
            kl += (self.recalled if context else self.inserted).of(gained / front)
        if reordered:
            kl += self.reordered
        return self.bound * kl * weight

    def bare(self, where: Where) -> float:
        """A canonical, and nothing that makes up for what stands in front."""
        return self.bound * (self.canonical * self.weight(where) if where.front else self.first)

    def patched(self, where: Where) -> float:
        """A canonical with its patch."""
        return self.bound * self.patch * self.weight(where)

    def orbited(self, where: Where) -> float:
        """A canonical with a patch for any order."""
        return self.bound * self.orbit * self.weight(where)

    def at_rank(self, rank: int) -> "ErrorModel":
        """The same for patches of another rank."""
        left = (rank / self.rank) ** -self.rank_power
        changed = {"patch": self.patch * left, "orbit": max(self.orbit, self.patch * left), "rank": rank}
        return self.model_copy(update=changed)

    def scaled(self, factor: float) -> "ErrorModel":
        """The same with all KL times `factor`."""
        return self.model_copy(update={"bound": self.bound * factor})
