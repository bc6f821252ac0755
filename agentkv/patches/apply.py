"""Add a patch to relocated KV, or take it off again: K += (UΣ)_K V_Kᵀ, V += (UΣ)_V V_Vᵀ, no forward.

The rope band must already stand at the positions the patch was formed for: the deficit is measured
there. When rotation and patch can be one pass over the cache, `placement` hands the factors to the
`place` kernel instead.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from agentkv_kernels.types import Factors
from torch import Tensor

from agentkv.errors import InvalidInput
from agentkv.kv import KVBlock
from agentkv.patches.form import Patch


def apply(block: KVBlock, patch: Patch) -> KVBlock:
    """`block` with the patch added; new tensors in the block's dtype, summed in fp32 (fp64 for fp64).

    Raises InvalidInput when the patch was formed for other layers, tokens or features.
    """
    return KVBlock(correct(block.slots, patch), block.positions)


def undo(block: KVBlock, patch: Patch) -> KVBlock:
    """`block` with the patch taken off: the clean view of a chunk whose canonical KV is not at hand.

    Exact up to one rounding of the block's dtype. Where the canonical is stored, copying it is exact.
    """
    return KVBlock(correct(block.slots, patch, sign=-1.0), block.positions)


def correct(slots: Sequence[Tensor], patch: Patch, sign: float = 1.0) -> tuple[Tensor, ...]:
    """slots [L, n, H, D] + sign · patch, as new tensors. Raises InvalidInput."""
    return tuple(_add(x, f, sign) for x, f in zip(slots, placement(slots, patch), strict=True))


def placement(slots: Sequence[Tensor], patch: Patch) -> tuple[Factors | None, ...]:
    """The patch's factors, checked against the slots [L, n, H, D] they are about to be added to."""
    if len(slots) != len(patch.factors):
        raise InvalidInput(
            got=f"{len(patch.factors)} slots of factors for {len(slots)} cache slots",
            expected="one entry, possibly None, per cache slot",
            do="apply a patch to the model it was formed on",
        )
    for x, factors in zip(slots, patch.factors, strict=True):
        if factors is None:
            continue
        need = (x.shape[0] + 1, x.shape[1], x.shape[2] * x.shape[3])
        have = (factors.offsets.shape[0], factors.left.shape[0], factors.right.shape[1])
        if need != have:
            raise InvalidInput(
                got=f"factors for {have[0] - 1} layers, {have[1]} tokens, {have[2]} features",
                expected=f"{need[0] - 1} layers, {need[1]} tokens, {need[2]} features",
                do="apply a patch to the chunk it was formed for",
            )
    return patch.factors


def _add(x: Tensor, factors: Factors | None, sign: float) -> Tensor:
    if factors is None:
        return x.clone()
    compute = torch.float64 if x.dtype == torch.float64 else torch.float32
    out = x.to(compute, copy=True, memory_format=torch.contiguous_format)  # [L, n, H, D]
    left, right = factors.left.to(compute), factors.right.to(compute)
    for layer, (a, b) in enumerate(pairwise(factors.offsets.tolist())):
        if a < b:
            out[layer].view(x.shape[1], -1).addmm_(left[:, a:b], right[a:b], alpha=sign)
    return out.to(x.dtype)
