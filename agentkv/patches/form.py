"""Low-rank conditioning patches (Kamera §3: form once, apply without a forward).

Per layer l and cache slot s the deficit Δ = KV(B|A) - R(δ)·KV(B|∅) is an n × d matrix, d = H·D. Its
truncated SVD Δ ≈ (UΣ)Vᵀ is the patch; one component costs n + d numbers. Scheme "energy" spends one
byte budget over all layers and slots at once: the squared error of keeping a set of components is the
sum of the σ² left out (Eckart & Young 1936), so taking them by σ² per byte is optimal for the whole
cache when all components cost the same. Scheme "uniform" keeps the same rank everywhere.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from agentkv_kernels.types import Factors
from torch import Tensor

from agentkv.errors import InvalidInput
from agentkv.patches.budget import Budget, pick_layers, require_rank
from agentkv.patches.checks import check, wide
from agentkv.patches.factorise import factorise
from agentkv.patches.ranking import best_that_fit, weighted

Kind = Literal["conditioned", "orbit", "removal"]
Scheme = Literal["energy", "uniform"]


@dataclass(frozen=True)
class Patch:
    """What turns a chunk's canonical KV into its KV behind given antecedents, both at `position`."""

    factors: tuple[Factors | None, ...]
    """Per cache slot; None where nothing is stored."""
    kind: Kind
    energy: float
    """Share of ‖Δ‖² over all layers and slots that the patch reproduces; 1.0 for Δ = 0."""
    shared: bool = False
    """True when the `right` factors belong to a basis that other patches use too (basis.py)."""
    position: int = 0
    """Position id of the chunk's first token where Δ was measured; `turn.turned` takes it elsewhere."""

    @property
    def nbytes(self) -> int:
        """Bytes this patch adds to a store; a shared basis is not counted."""
        parts = [f for f in self.factors if f is not None]
        return sum(f.left.nbytes + (0 if self.shared else f.right.nbytes) for f in parts)

    def to(self, device: torch.device | str) -> Patch:
        """The factors on ``device``: this very patch where they are already."""
        moved = tuple(f and Factors(*(x.to(device) for x in f)) for f in self.factors)
        pairs = zip(moved, self.factors, strict=True)
        same = all(m is f or all(map(operator.is_, m, f)) for m, f in pairs if m and f)
        return self if same else replace(self, factors=moved)


def deficit(conditioned: Sequence[Tensor], relocated: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Δ per slot [L, n, H, D], in fp32 (fp64 for fp64 slots).

    conditioned: slots of KV(B|A). relocated: slots of KV(B|∅), their rope bands already rotated to the
    positions of `conditioned`. Raises InvalidInput when the two do not line up.
    """
    if [c.shape for c in conditioned] != [r.shape for r in relocated]:
        raise InvalidInput(
            got=f"{[tuple(c.shape) for c in conditioned]} and {[tuple(r.shape) for r in relocated]}",
            expected="conditioned and relocated slots of the same shapes [L, n, H, D]",
            do="slice the same tokens of the same chunk out of both",
        )
    return tuple(wide(c) - wide(r) for c, r in zip(conditioned, relocated, strict=True))


def form(
    delta: Sequence[Tensor],
    budget: Budget,
    scheme: Scheme = "energy",
    layers: float | Sequence[int] | None = None,
    weights: Sequence[float | Tensor] | None = None,
    dtype: torch.dtype | None = None,
    kind: Kind = "conditioned",
) -> Patch:
    """Factorise a deficit into a patch of at most the budget's bytes.

    delta: per slot [L, n, H, D]; L and n are common. budget: see `Budget`. scheme: how it is spent.
    layers: None for all, a share in (0, 1] for the deepest ones, or indices.
    weights: per slot a number, or [L] one per layer; multiplies σ² in the ranking of "energy".
    dtype: storage dtype of the factors; None takes that of the factorisation, fp32, or fp64 for fp64 deltas.
    Raises BadRank for a budget below one component, InvalidInput for slots that do not line up,
    NonFinite for NaN or infinity.
    """
    return decompose(delta, layers).patch(budget, scheme, weights, dtype, kind)


@dataclass(frozen=True)
class Spectrum:
    """All components of a deficit in its chosen layers: patches of many budgets from one factorisation."""

    flat: tuple[Tensor, ...]
    """[l, n, d] per slot: the deficit in those layers."""
    parts: tuple[tuple[Tensor, Tensor, Tensor], ...]
    """left [l, n, p], right [l, p, d] and power (σ²) [l, p] per slot."""
    layers: tuple[int, ...]
    """The l layers, ascending."""
    depth: int
    """L, layers of the model."""
    total: float
    """‖Δ‖² over all L layers and all slots."""

    def deepest(self, share: float) -> Spectrum:
        """The deepest `share` in (0, 1] of the model's layers, of those that are here. Raises BadRank."""
        wanted = set(pick_layers(self.depth, share))
        kept = [i for i, layer in enumerate(self.layers) if layer in wanted]
        return Spectrum(
            tuple(x[kept] for x in self.flat),
            tuple((left[kept], right[kept], power[kept]) for left, right, power in self.parts),
            tuple(self.layers[i] for i in kept),
            self.depth,
            self.total,
        )

    def patch(
        self,
        budget: Budget,
        scheme: Scheme = "energy",
        weights: Sequence[float | Tensor] | None = None,
        dtype: torch.dtype | None = None,
        kind: Kind = "conditioned",
    ) -> Patch:
        """The patch that the budget buys; arguments and errors as in `form`."""
        flat, parts, dtype = self.flat, self.parts, dtype or self.flat[0].dtype
        limit = budget.resolve(flat, self.depth, dtype.itemsize)
        if scheme == "uniform":
            rank = require_rank(limit, flat, dtype.itemsize)
            keep = [torch.arange(p.shape[1], device=p.device).expand(p.shape) < rank for _, _, p in parts]
        else:
            costs = [(x.shape[1] + x.shape[2]) * dtype.itemsize for x in flat]
            gains = weighted([p for _, _, p in parts], weights, self.layers)
            keep = best_that_fit(gains, costs, limit)
        noise = (
            torch.finfo(flat[0].dtype).eps ** 2 * self.total
        )  # below rounding there is only noise to store
        keep = [k & (p > noise) for k, (_, _, p) in zip(keep, parts, strict=True)]
        kept = sum(float(p[k].sum(dtype=torch.float64)) for k, (_, _, p) in zip(keep, parts, strict=True))
        factors = tuple(
            _pack(left, right, k, self.layers, self.depth, dtype)
            for k, (left, right, _) in zip(keep, parts, strict=True)
        )
        return Patch(factors, kind, min(kept / self.total, 1.0) if self.total else 1.0)


def decompose(delta: Sequence[Tensor], layers: float | Sequence[int] | None = None) -> Spectrum:
    """Factorise a deficit, per slot [L, n, H, D], in the layers that `form` would patch. Raises as `form`."""
    flat = [x.flatten(2) for x in check(delta)]  # [L, n, d]
    depth = flat[0].shape[0]
    chosen = pick_layers(depth, layers)
    picked = flat if len(chosen) == depth else [x[chosen] for x in flat]
    total = sum(float(torch.linalg.vector_norm(x, dtype=torch.float64)) ** 2 for x in flat)
    return Spectrum(tuple(picked), tuple(_by_width(picked)), tuple(chosen), depth, total)


def _by_width(slots: list[Tensor]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """left [l, n, p], right [l, p, d], power [l, p] per slot; slots of one width run as one batch."""
    found: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
    for d in {x.shape[2] for x in slots}:
        same = [i for i, x in enumerate(slots) if x.shape[2] == d]
        pieces = [t.chunk(len(same)) for t in factorise(torch.cat([slots[i] for i in same]))]
        found.update({i: (pieces[0][k], pieces[1][k], pieces[2][k]) for k, i in enumerate(same)})
    return [found[i] for i in range(len(slots))]


def _pack(
    left: Tensor, right: Tensor, keep: Tensor, layers: Sequence[int], depth: int, dtype: torch.dtype
) -> Factors | None:
    """Kept columns of all layers side by side, or None when there are none."""
    if not keep.any():
        return None
    ranks = torch.zeros(depth, dtype=torch.int64)
    ranks[list(layers)] = keep.sum(1).cpu()
    offsets = torch.cat([ranks.new_zeros(1), ranks.cumsum(0)]).to(torch.int32)
    columns = left.mT[keep].T.to(dtype).contiguous()  # [n, ΣR]
    return Factors(columns, right[keep].to(dtype).contiguous(), offsets)
