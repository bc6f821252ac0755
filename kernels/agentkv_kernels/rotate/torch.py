"""R(δ) on any device, and the path that CPUs take: compiled where heads are dense, else with tensor ops."""

import os
from collections.abc import Iterator
from functools import cache
from threading import Thread

import torch
from torch import Tensor

from agentkv_kernels.checks import check_out, check_rope
from agentkv_kernels.types import Rope

BLOCK_NUMBERS = 1 << 19  # 2 MiB of fp32 scratch: stays in cache, and is worth what starting an op costs


def rotate(x: Tensor, rope: Rope, out: Tensor | None = None) -> Tensor:
    """Return R(δ_t) x[l, t] for every layer and token.

    x: [L, T, H, D] bf16, fp16, fp32 (fp32 arithmetic, rounded once) or fp64 (fp64 arithmetic), any
    strides. `out`: None for a new tensor, x itself to rotate in place, or a tensor like x that shares
    no memory with it. Layers whose spec is -1 are copied. Raises ShapeError, OverlapError.
    """
    check_rope(x, rope)
    out = torch.empty_like(x) if out is None else out
    check_out(x, out)
    if x.dtype == arithmetic(x.dtype):
        turn(x, rope, out)
        return out
    for layers, rows in blocks(x):
        out[layers, rows].copy_(turned(x, rope, layers, rows))
    return out


@cache
def prepare(dtype: torch.dtype) -> None:
    """Load in the background what the first turn of slots of `dtype` in a CPU's memory would wait for: numba
    and the compiled loop, most of a second."""

    def load() -> None:
        from agentkv_kernels.rotate import native

        native.compile_for(arithmetic(dtype))

    loader = Thread(target=load, name="agentkv-rotate-load")  # an exit waits for it
    loader.start()
    # A fork would inherit the locks that it holds, and not the thread.
    os.register_at_fork(before=loader.join)


def arithmetic(dtype: torch.dtype) -> torch.dtype:
    """The dtype a slot of `dtype` is computed in: fp64 for fp64, else fp32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def blocks(x: Tensor) -> Iterator[tuple[slice, slice]]:
    """Cut x [L, T, H, D] into blocks of about BLOCK_NUMBERS: whole layers, or tokens of one layer."""
    layers, tokens, heads, width = x.shape
    most = max(1, BLOCK_NUMBERS // max(1, heads * width))
    group, step = max(1, most // max(1, tokens)), max(1, min(most, tokens))
    for layer in range(0, layers, group):
        for start in range(0, tokens, step):
            yield slice(layer, min(layer + group, layers)), slice(start, min(start + step, tokens))


def turned(x: Tensor, rope: Rope | None, layers: slice, rows: slice) -> Tensor:
    """One block of x [L, T, H, D], turned: dense [l, n, H, D] of its own in the arithmetic dtype."""
    block = x[layers, rows]
    wide = torch.empty(block.shape, dtype=arithmetic(x.dtype), device=x.device).copy_(block)
    if rope is not None:
        each = slice(None) if rope.cos.shape[1] == 1 else rows
        cos, sin, specs = rope.cos[:, each], rope.sin[:, each], rope.spec_of_layer[layers]
        turn(wide, rope._replace(cos=cos, sin=sin, spec_of_layer=specs), wide)
    return wide


def turn(x: Tensor, rope: Rope, out: Tensor) -> None:
    """out = R x for x, out [L, T, H, D] of one arithmetic dtype; out is x, or shares nothing with it."""
    if x.device.type == "cpu":
        # Here and not above: numba takes half a second to import, and only CPUs need it.
        from agentkv_kernels.rotate import native

        if native.fits(x) and native.fits(out):
            native.turn(x, rope, out)
            return
    if x.data_ptr() != out.data_ptr():
        out.copy_(x)
    for layer, spec in enumerate(rope.spec_of_layer.tolist()):
        if spec >= 0:
            first, second = _sides(out[layer], rope)  # [T, H, R/2]
            cos, sin = (of[spec, :, None].to(x.dtype) for of in (rope.cos, rope.sin))  # [T or 1, 1, R/2]
            both = first * cos - second * sin, second * cos + first * sin
            first.copy_(both[0])
            second.copy_(both[1])


def _sides(x: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
    """Views of both dims of every pair of x [T, H, D]."""
    half = rope.cos.shape[-1]
    band = x[..., rope.start : rope.start + 2 * half]
    if rope.style == "half":
        return band[..., :half], band[..., half:]
    return band[..., 0::2], band[..., 1::2]
