"""left @ right of one layer, by the fastest dense product the device has."""

import torch
from torch import Tensor


def product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """Return left [n, r] @ right [r, d] as a new [n, d] in `dtype` (fp32 or fp64).

    oneDNN's product is about twice MKL's on CPUs that are not Intel's; it is dense fp32 only.
    """
    left, right = left.to(dtype), right.to(dtype)
    if left.device.type == "cpu" and dtype == torch.float32 and torch.backends.mkldnn.is_available():
        weight = right.t().contiguous()  # [d, r]
        out: Tensor = torch.ops.mkldnn._linear_pointwise(left.contiguous(), weight, None, "none", [], "")
        return out
    return left @ right
