"""Which components of a deficit a byte budget buys: the most weighted σ² per byte, all layers at once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from agentkv.errors import InvalidInput


def weighted(
    power: list[Tensor], weights: Sequence[float | Tensor] | None, chosen: Sequence[int]
) -> list[Tensor]:
    """σ² [l, p] times the weight of its slot, or of its slot and layer."""
    if weights is None:
        return power
    if len(weights) != len(power):
        raise InvalidInput(
            got=f"{len(weights)} weights",
            expected=f"one per slot, {len(power)}",
            do="repeat it for every slot",
        )
    rows = [
        w[list(chosen), None].to(p) if isinstance(w, Tensor) else w
        for p, w in zip(power, weights, strict=True)
    ]
    return [p * w for p, w in zip(power, rows, strict=True)]


def best_that_fit(gains: list[Tensor], costs: list[int], limit: int) -> list[Tensor]:
    """Masks [l, p] of the components with the most gain per byte that together fit `limit` bytes."""
    rate = torch.cat([(g / c).flatten() for g, c in zip(gains, costs, strict=True)])
    cost = torch.cat(
        [torch.full_like(g, c, dtype=torch.int64).flatten() for g, c in zip(gains, costs, strict=True)]
    )
    order = rate.argsort(descending=True)
    mask = torch.zeros(rate.shape, dtype=torch.bool, device=rate.device)
    mask[order] = cost[order].cumsum(0) <= limit
    return [m.view(g.shape) for m, g in zip(mask.split([g.numel() for g in gains]), gains, strict=True)]
