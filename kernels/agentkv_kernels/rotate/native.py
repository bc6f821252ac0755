"""R(δ) as one compiled pass over memory, for heads that lie densely in a CPU's memory.

A head is copied and its band then turned where it stands, in L1: however narrow the band and far apart the
dims of a pair, memory sees nothing but the copy.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Lock
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from agentkv_kernels.types import Rope

PART_BYTES = 1 << 18  # what a thread of its own is worth: about five times what it costs to wake one
# Contraction to fused multiply-adds only: NaN and inf stay what they are.
OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": {"contract"}}
_TYPES = {torch.float32: numba.float32, torch.float64: numba.float64}
_COMPILING = Lock()


def fits(x: Tensor) -> bool:
    """Whether x [L, T, H, D] can be turned here: fp32 or fp64 in a CPU's memory, heads without gaps."""
    return x.device.type == "cpu" and x.dtype in _TYPES and x.stride(-1) == 1


def turn(x: Tensor, rope: Rope, out: Tensor) -> None:
    """out[l, t] = R(δ_t) x[l, t], on `torch.get_num_threads()` threads.

    x, out: [L, T, H, D] of one dtype that `fits`; out is x, or shares nothing with it.
    """
    layers, tokens, heads, width = x.shape
    if not x.numel():
        return
    cos, sin = (of.to(x.dtype).contiguous() for of in (rope.cos, rope.sin))  # [S, T or 1, R/2]
    half = cos.shape[-1]
    arguments = (
        _flat(x), _flat(out), x.stride()[:3], out.stride()[:3],
        _flat(cos), _flat(sin), (cos.stride(0), half if cos.shape[1] > 1 else 0),
        rope.spec_of_layer.to(torch.int32).numpy(), (tokens, heads, width, half, rope.start),
        rope.style == "interleaved", x.data_ptr() != out.data_ptr(),
    )  # fmt: skip
    rows = layers * tokens
    parts = max(1, min(torch.get_num_threads(), x.nbytes // PART_BYTES, rows))
    bounds = [rows * part // parts for part in range(parts + 1)]
    loop = compile_for(x.dtype)
    others = [
        _pool(os.getpid()).submit(loop, *arguments, *bounds[part : part + 2]) for part in range(1, parts)
    ]
    loop(*arguments, *bounds[:2])
    for other in others:
        other.result()


def _flat(x: Tensor) -> np.ndarray:
    """The memory of x from its first number to its last, 1-D."""
    span = 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
    return x.as_strided((span,), (1,)).numpy()


@cache
def _pool(_process: int) -> ThreadPoolExecutor:
    """Threads for all callers of one process: a fork inherits the object but not its threads."""
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="agentkv-rotate")


def compile_for(dtype: torch.dtype) -> Callable[..., None]:
    """`_turn_rows` for `dtype`; who comes while it is being compiled waits for it."""
    with _COMPILING:
        return _compiled(dtype)


@cache
def _compiled(dtype: torch.dtype) -> Callable[..., None]:
    """Without the GIL; kept on disk where there is a place for it."""
    numbers, steps = numba.types.Array(_TYPES[dtype], 1, "C"), numba.types.UniTuple(numba.int64, 3)
    signature = numba.void(
        numbers, numbers, steps, steps,
        numbers, numbers, numba.types.UniTuple(numba.int64, 2),
        numba.types.Array(numba.int32, 1, "C"), numba.types.UniTuple(numba.int64, 5),
        numba.boolean, numba.boolean, numba.int64, numba.int64,
    )  # fmt: skip
    try:
        return numba.njit(signature, cache=True, **OPTIONS)(_turn_rows)
    except (RuntimeError, OSError):  # no directory to write to: the same code, compiled once a process
        return numba.njit(signature, **OPTIONS)(_turn_rows)


# Slices of one dimension, since the compiler vectorises those and nothing else that has strides.
@numba.njit(inline="always", **OPTIONS)
def _copy(x, at, out, to, width):  # type: ignore[no-untyped-def]
    old, new = x[at : at + width], out[to : to + width]
    for i in range(width):
        new[i] = old[i]


def _turn_rows(  # type: ignore[no-untyped-def]
    x, out, x_steps, out_steps, cos, sin, angle_steps, spec_of_layer, sizes, interleaved, copies, first, last
):
    """Turn rows first..last of L · T. Steps: (layer, token, head) of x and out, (spec, token) of cos and
    sin. sizes: T, H, D, R/2 and the first dim of the band."""
    tokens, heads, width, half, start = sizes
    for row in range(first, last):
        layer, token = row // tokens, row % tokens
        spec = spec_of_layer[layer]
        angle = max(spec, 0) * angle_steps[0] + token * angle_steps[1]
        c, s = cos[angle : angle + half], sin[angle : angle + half]
        at = layer * x_steps[0] + token * x_steps[1]
        to = layer * out_steps[0] + token * out_steps[1]
        for _ in range(heads):
            if copies:
                _copy(x, at, out, to, width)
            if spec >= 0:
                if interleaved:
                    band = out[to + start : to + start + 2 * half]
                    for i in range(half):
                        a, b = band[2 * i], band[2 * i + 1]
                        band[2 * i] = a * c[i] - b * s[i]
                        band[2 * i + 1] = b * c[i] + a * s[i]
                else:
                    left = out[to + start : to + start + half]
                    right = out[to + start + half : to + start + 2 * half]
                    for i in range(half):
                        a, b = left[i], right[i]
                        left[i] = a * c[i] - b * s[i]
                        right[i] = b * c[i] + a * s[i]
            at += x_steps[2]
            to += out_steps[2]
