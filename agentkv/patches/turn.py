"""Patches at another position: the rope band of a deficit turns like a key's.

K(B|A) and K(B|∅) at position p are R(p) times what they are at 0, so Δ at p is R(p) Δ at 0. R(δ) acts on
features alone, and a chunk moves as a whole (one δ for all of its tokens), so R(δ) UΣVᵀ = UΣ (V R(δ)ᵀ)ᵀ:
turning the few rows of Vᵀ is exact, and the coefficients of the tokens stay what they are.
"""

from __future__ import annotations

import torch
from agentkv_kernels.registry import pick
from agentkv_kernels.types import Factors, Rope
from torch import Tensor

from agentkv.layout import Layout
from agentkv.patches.form import Patch
from agentkv.rope import build


def turned(patch: Patch, layout: Layout, position: int) -> tuple[Factors | None, ...]:
    """The factors of ``patch`` for a chunk whose first token stands at ``position``."""
    delta = torch.tensor([position - patch.position])
    if not delta.any():
        return patch.factors
    found: list[Factors | None] = []
    for spec, factors in zip(layout.slots, patch.factors, strict=True):
        if factors is None or spec.rope is None or not len(factors.right):
            found.append(factors)
            continue
        wide = torch.promote_types(factors.right.dtype, torch.float32)
        device = factors.right.device
        rope = build(spec.rope, delta.to(device), wide)
        rows = factors.right.to(wide).view(
            1, -1, spec.heads, spec.dim
        )  # [1, ΣR, H, D]: a row of Vᵀ is a token
        right = pick("rotate", device)(rows, _by_row(rope, factors.offsets.to(device)))
        found.append(factors._replace(left=factors.left.to(wide), right=right.view_as(factors.right)))
    return tuple(found)


def _by_row(rope: Rope, offsets: Tensor) -> Rope:
    """The rope of one δ, [S, 1, R/2], as one for the rows of Vᵀ, [1, ΣR, R/2]: each turns as its layer
    does."""
    ranks = offsets[1:] - offsets[:-1]
    spec = torch.repeat_interleave(rope.spec_of_layer, ranks.to(rope.spec_of_layer.device)).long()  # [ΣR]
    still = (spec < 0)[:, None]  # rows of layers without positions
    cos = torch.where(still, torch.ones_like(rope.cos[:, 0][spec]), rope.cos[:, 0][spec])
    sin = torch.where(still, torch.zeros_like(rope.sin[:, 0][spec]), rope.sin[:, 0][spec])
    one = torch.zeros(1, dtype=torch.int32, device=cos.device)
    return Rope(cos[None], sin[None], one, rope.style, rope.start)
