"""How many bytes a patch may take, and in which layers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from agentkv.errors import BadRank


@dataclass(frozen=True)
class Budget:
    """A byte limit for one patch, in one of three currencies. Exactly one field is set."""

    rank: float | None = None
    """The bytes of a patch of this rank in every selected layer and slot."""
    nbytes: int | None = None
    """Bytes."""
    share: float | None = None
    """Share of the bytes of the chunk's own KV in all layers, at `page_itemsize` bytes a number."""
    page_itemsize: int = 4

    def __post_init__(self) -> None:
        given = [v for v in (self.rank, self.nbytes, self.share) if v is not None]
        if len(given) != 1 or not math.isfinite(given[0]) or given[0] <= 0:
            raise BadRank(
                got=f"rank={self.rank}, nbytes={self.nbytes}, share={self.share}",
                expected="exactly one positive, finite number",
                do="Budget(rank=32), Budget(nbytes=1 << 20) or Budget(share=0.25)",
            )
        if self.rank is not None and self.rank < 1:
            raise BadRank(got=self.rank, expected="rank >= 1", do="ask for rank 1 or more, or store no patch")

    def resolve(self, slots: Sequence[Tensor], depth: int, itemsize: int) -> int:
        """The limit in bytes.

        slots: [l, n, d] per slot, the selected layers only. depth: layers of the whole model.
        itemsize: bytes of one stored number of the patch.
        Raises BadRank when it does not pay for one component.
        """
        costs = [(x.shape[1] + x.shape[2]) * itemsize for x in slots]
        if self.rank is not None:
            return int(self.rank * sum(x.shape[0] * c for x, c in zip(slots, costs, strict=True)))
        page = sum(depth * x.shape[1] * x.shape[2] for x in slots) * self.page_itemsize
        limit = self.nbytes if self.nbytes is not None else int((self.share or 0.0) * page)
        if limit < min(costs):
            raise BadRank(
                got=f"{limit} bytes",
                expected=f"at least {min(costs)} bytes, one component of n + d numbers",
                do="raise the budget, or store no patch",
            )
        return limit


def require_rank(limit: int, slots: Sequence[Tensor], itemsize: int) -> int:
    """The rank that `limit` bytes pay for in every layer of slots [l, n, d]. Raises BadRank below 1."""
    per_rank = sum(x.shape[0] * (x.shape[1] + x.shape[2]) * itemsize for x in slots)
    if limit < per_rank:
        raise BadRank(
            got=f"{limit} bytes",
            expected=f"at least {per_rank} bytes, rank 1 in every layer and slot",
            do="raise the budget, patch fewer layers, or spend it by energy",
        )
    return limit // per_rank


def pick_layers(depth: int, layers: float | Sequence[int] | None) -> list[int]:
    """Layer indices, ascending: all for None, the deepest share for a float in (0, 1], or `layers` itself."""
    if layers is None:
        return list(range(depth))
    if isinstance(layers, int | float):
        if not 0 < layers <= 1:
            raise BadRank(got=layers, expected="a share of the layers in (0, 1]", do="use 2/3, or indices")
        return list(range(depth - max(1, round(layers * depth)), depth))
    chosen = sorted(set(layers))
    if not chosen or chosen[0] < 0 or chosen[-1] >= depth:
        raise BadRank(
            got=list(layers), expected=f"one or more of 0..{depth - 1}", do="name layers that exist"
        )
    return chosen
