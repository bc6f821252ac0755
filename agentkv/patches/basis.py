"""Shared bases: the directions of Δ are common to all chunks of a model (Kamera §5).

Pool ΔᵀΔ over training pairs per layer and slot; its leading eigenvectors V are the basis. Forming is
then a projection, C = Δ V (one GEMM, no factorisation), and only the coefficients C [n, r] are stored
with the chunk. The ranks per layer come from the pooled energies: the directions with the most σ²,
over all layers and slots, until a chunk of `tokens` tokens has spent its coefficient bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from agentkv_kernels.types import Factors
from torch import Tensor

from agentkv.errors import BadRank, InvalidInput
from agentkv.patches.checks import check
from agentkv.patches.factorise import eigh
from agentkv.patches.form import Kind, Patch


@dataclass(frozen=True)
class SharedBasis:
    """Feature directions that all patches of a model share."""

    right: tuple[Tensor, ...]
    """[ΣR, d] per slot; orthonormal rows within a layer."""
    offsets: tuple[Tensor, ...]
    """int32 [L + 1] per slot; layer l owns rows offsets[l] : offsets[l + 1]."""

    def project(
        self, delta: Sequence[Tensor], dtype: torch.dtype = torch.float32, kind: Kind = "conditioned"
    ) -> Patch:
        """The patch of a deficit [L, n, H, D] per slot: coefficients of its own, directions of the basis.

        Raises InvalidInput for another model's deficit, NonFinite for NaN or infinity.
        """
        flat = [x.flatten(2) for x in check(delta)]  # [L, n, d]
        self._fits(flat)
        kept, total, factors = 0.0, 0.0, []
        for x, right, offsets in zip(flat, self.right, self.offsets, strict=True):
            bounds = offsets.tolist()
            left = torch.cat([x[i] @ right[a:b].T.to(x) for i, (a, b) in enumerate(pairwise(bounds))], dim=1)
            kept += float(left.square().sum(dtype=torch.float64))
            total += float(x.square().sum(dtype=torch.float64))
            factors.append(Factors(left.to(dtype), right, offsets) if bounds[-1] else None)
        return Patch(tuple(factors), kind, min(kept / total, 1.0) if total else 1.0, shared=True)

    def _fits(self, flat: Sequence[Tensor]) -> None:
        have = [(x.shape[0], x.shape[2]) for x in flat]
        need = [(o.shape[0] - 1, r.shape[1]) for o, r in zip(self.offsets, self.right, strict=True)]
        if have != need:
            raise InvalidInput(
                got=f"(layers, features) {have}", expected=str(need), do="use the basis of this model"
            )


class BasisPool:
    """Collects ΔᵀΔ over (A, B) pairs; L·d² numbers per slot whatever the number of pairs."""

    def __init__(self) -> None:
        self._gram: list[Tensor] = []  # fp64 [L, d, d] per slot

    def add(self, delta: Sequence[Tensor]) -> None:
        """Pool one deficit, per slot [L, n, H, D]. Raises InvalidInput or NonFinite."""
        flat = [x.flatten(2) for x in check(delta)]
        grams = [(x.mT @ x).double() for x in flat]
        if not self._gram:
            self._gram = grams
        elif [g.shape for g in grams] != [g.shape for g in self._gram]:
            raise InvalidInput(
                got=str([tuple(g.shape) for g in grams]),
                expected=str([tuple(g.shape) for g in self._gram]),
                do="keep one pool per model",
            )
        else:
            self._gram = [a + b for a, b in zip(self._gram, grams, strict=True)]

    def basis(self, rank: float, dtype: torch.dtype = torch.float32) -> SharedBasis:
        """The best `rank` directions per layer and slot on average, spread by pooled energy.

        Raises BadRank for rank < 1, InvalidInput for an empty pool.
        """
        if not rank >= 1:
            raise BadRank(got=rank, expected="rank >= 1", do="ask for rank 1 or more")
        if not self._gram:
            raise InvalidInput(got="an empty pool", expected="at least one deficit", do="call add() first")
        solved = [eigh(g) for g in self._gram]
        powers = [s.values.flip(-1) for s in solved]  # [L, d], descending
        pool = torch.cat([p.flatten() for p in powers])
        count = min(int(rank * sum(p.shape[0] for p in powers)), pool.numel())
        mask = torch.zeros(pool.shape, dtype=torch.bool, device=pool.device)
        mask[pool.argsort(descending=True, stable=True)[:count]] = True
        rights, offsets = [], []
        for s, keep in zip(solved, mask.split([p.numel() for p in powers]), strict=True):
            chosen = keep.view(s.values.shape)
            rights.append(s.vectors.flip(-1).mT[chosen].to(dtype).contiguous())
            ranks = chosen.sum(1).cpu()
            offsets.append(torch.cat([ranks.new_zeros(1), ranks.cumsum(0)]).to(torch.int32))
        return SharedBasis(tuple(rights), tuple(offsets))
