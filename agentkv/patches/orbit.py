"""Orbit patches: one patch for a set of chunks whose order is free (Kamera §4).

The patch is formed from Δ̄ = mean over the orders seen of Δ_order, the least-squares constant: no other
single deficit is closer to all of them. It costs what one patch costs and serves every order.

The orders put the chunk at different positions, and the rope band of Δ turns with the position: take
every deficit against the canonical at one common position before it is added.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from agentkv.errors import InvalidInput
from agentkv.patches.budget import Budget
from agentkv.patches.checks import check
from agentkv.patches.form import Patch, Scheme, form


class OrbitMean:
    """Running mean of the deficits of one chunk behind the same antecedents in different orders."""

    def __init__(self) -> None:
        self._mean: tuple[Tensor, ...] = ()
        self._count = 0

    @property
    def count(self) -> int:
        """Orders added."""
        return self._count

    @property
    def mean(self) -> tuple[Tensor, ...]:
        """Δ̄ per slot [L, n, H, D], fp32 or fp64. Raises InvalidInput before the first order."""
        if not self._count:
            raise InvalidInput(got="no order", expected="at least one deficit", do="call add() first")
        return self._mean

    def add(self, delta: Sequence[Tensor]) -> None:
        """Take in the deficit of one order, per slot [L, n, H, D]. Raises InvalidInput or NonFinite."""
        new = check(delta)
        if not self._count:
            self._mean = tuple(x.clone() for x in new)
        elif [x.shape for x in new] != [x.shape for x in self._mean]:
            raise InvalidInput(
                got=f"a deficit of shapes {[tuple(x.shape) for x in new]}",
                expected=f"{[tuple(x.shape) for x in self._mean]}, as the orders before",
                do="keep one OrbitMean per chunk",
            )
        else:
            for mean, x in zip(self._mean, new, strict=True):
                mean.lerp_(x, 1 / (self._count + 1))
        self._count += 1

    def form(self, budget: Budget, scheme: Scheme = "energy", dtype: torch.dtype | None = None) -> Patch:
        """The orbit patch. `energy` is the share of ‖Δ̄‖², not of any one order's deficit."""
        return form(self.mean, budget, scheme, dtype=dtype, kind="orbit")
