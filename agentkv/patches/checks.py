"""What every patch function asks of a deficit before it computes anything."""

from collections.abc import Sequence

import torch
from torch import Tensor

from agentkv.errors import InvalidInput, NonFinite


def check(delta: Sequence[Tensor]) -> list[Tensor]:
    """The slots in fp32 or fp64. Raises InvalidInput or NonFinite."""
    shapes = [tuple(x.shape) for x in delta]
    if not shapes or any(len(s) != 4 or s[:2] != shapes[0][:2] or 0 in s for s in shapes):
        raise InvalidInput(
            got=f"slots {shapes}",
            expected="one non-empty [L, n, H, D] per slot, the same L and n in all",
            do="pass what deficit() returns",
        )
    slots = [wide(x) for x in delta]
    bad = [i for i, x in enumerate(slots) if not torch.isfinite(x.sum())]
    if bad:
        raise NonFinite(
            got=f"NaN or infinity in slot {bad}",
            expected="a finite deficit",
            do="look for the forward that made it",
        )
    return slots


def wide(x: Tensor) -> Tensor:
    """x in the dtype patches are computed in: fp64 stays, everything else becomes fp32."""
    return x if x.dtype == torch.float64 else x.float()
