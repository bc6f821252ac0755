"""Removal patches: what a survivor's KV has to lose when an antecedent leaves (Kamera §4, deepstack row).

A survivor B keeps its conditioned KV and is only re-rotated. It then still carries what it read from
the chunk X that left. Δ = KV(B|A∖X) - R(δ)·KV(B|A), formed like any other patch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from agentkv.patches.budget import Budget
from agentkv.patches.form import Patch, Scheme, deficit, form


def removal(
    without: Sequence[Tensor],
    kept: Sequence[Tensor],
    budget: Budget,
    scheme: Scheme = "energy",
    dtype: torch.dtype | None = None,
) -> Patch:
    """The patch that makes a survivor forget an antecedent.

    without: slots [L, n, H, D] of KV(B|A∖X), from a forward without X.
    kept: slots of KV(B|A) as they stand in the window, rotated to the positions of `without`.
    Raises what `deficit` and `form` raise.
    """
    return form(deficit(without, kept), budget, scheme, dtype=dtype, kind="removal")
