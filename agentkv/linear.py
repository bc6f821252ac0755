"""fp32 linear layers on CPUs where oneDNN is faster than the BLAS that torch picked.

torch sends fp32 ``nn.Linear`` to MKL, which runs AVX2 code on AMD processors; oneDNN uses AVX-512 there
and is about twice as fast on the same dense weights, without packing or copying them. Which one wins is
measured once per process and thread count, never assumed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x ``[..., in]``, weight ``[out, in]``, bias ``[out]``: fp32 on CPU; returns ``[..., out]``."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


@cache
def onednn_wins(threads: int) -> bool:
    """Whether oneDNN beats the stock fp32 linear by 15 % for a question-sized input here (a few ms, once)."""
    if not torch.backends.mkldnn.is_available():
        return False
    x, weight = torch.ones(24, 576), torch.ones(1536, 576)

    def best(run: Callable[[], Tensor]) -> float:
        run()
        laps = []
        for _ in range(7):
            start = time.perf_counter()
            run()
            laps.append(time.perf_counter() - start)
        return min(laps)

    with torch.inference_mode():
        return best(lambda: F.linear(x, weight)) > 1.15 * best(lambda: onednn_linear(x, weight))


def _routable(module: nn.Module) -> bool:
    if type(module) is not nn.Linear or "forward" in module.__dict__:  # a subclass or a hook has its own idea
        return False
    return module.weight.dtype == torch.float32 and module.weight.device.type == "cpu"


def routable_linears(model: nn.Module) -> tuple[nn.Linear, ...]:
    """The plain fp32 CPU linears of ``model``, or none where oneDNN is not the faster one."""
    if not onednn_wins(torch.get_num_threads()):
        return ()
    return tuple(m for m in model.modules() if isinstance(m, nn.Linear) and _routable(m))


@contextmanager
def routed(linears: tuple[nn.Linear, ...]) -> Iterator[None]:
    """Send these linears to oneDNN inside the block; always put back, also after an error."""
    for module in linears:
        weight, bias = module.weight, module.bias
        module.__dict__["forward"] = lambda x, w=weight, b=bias: onednn_linear(x, w, b)
    try:
        yield
    finally:
        for module in linears:
            module.__dict__.pop("forward", None)
