"""How one engine forms all of its patches: the same bytes, spent the same way, stored the same way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from agentkv.patches.budget import Budget
from agentkv.patches.form import Kind, Patch, Scheme, form


@dataclass(frozen=True)
class Recipe:
    """budget: bytes of a patch. scheme: how they are spent. depth: share of the layers that is corrected,
    deepest first. dtype: of the stored factors; None takes that of the factorisation."""

    budget: Budget
    scheme: Scheme = "energy"
    depth: float = 1.0
    dtype: torch.dtype | None = None

    def form(self, delta: Sequence[Tensor], kind: Kind, position: int) -> Patch:
        """The patch of a deficit, per slot ``[L, n, H, D]``, measured with its first token at ``position``.

        Raises what `agentkv.patches.form` raises.
        """
        layers = None if self.depth == 1.0 else self.depth
        patch = form(delta, self.budget, self.scheme, layers, dtype=self.dtype, kind=kind)
        return replace(patch, position=position)
