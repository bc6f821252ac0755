"""The arithmetic of R(δ) on one block of tokens: tables built once, layers turned one by one.

A block is small enough for its scratch and tables to stay in cache, and large enough for the cost of
starting an op to vanish. Every view is made once per block, not once per layer.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from agentkv_kernels.types import Rope

BLOCK_NUMBERS = 1 << 18  # of one layer and slot: 1 MiB in fp32, half of it in each of two cores' L2


def arithmetic(dtype: torch.dtype) -> torch.dtype:
    """The dtype a slot of `dtype` is computed in: fp64 for fp64, else fp32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def blocks(tokens: int, numbers_per_token: int) -> Iterator[slice]:
    """Cut 0..tokens into runs whose rows fit BLOCK_NUMBERS."""
    step = max(1, BLOCK_NUMBERS // max(1, numbers_per_token))
    for start in range(0, tokens, step):
        yield slice(start, min(start + step, tokens))


class Bands(NamedTuple):
    """Per-layer views of one block: the whole rows and the two sides of its rope pairs, each [n, H, ·]."""

    whole: tuple[Tensor, ...]
    first: tuple[Tensor, ...]
    second: tuple[Tensor, ...]


def bands_of(block: Tensor, rope: Rope) -> Bands:
    """Views of block [L, n, H, D]."""
    half = rope.cos.shape[-1]
    band = block[..., rope.start : rope.start + 2 * half]  # [L, n, H, R]
    first, second = (
        (band[..., :half], band[..., half:]) if rope.style == "half" else (band[..., 0::2], band[..., 1::2])
    )
    return Bands(block.unbind(0), first.unbind(0), second.unbind(0))


class Table(NamedTuple):
    """cos and sin of one block and spec, spelled out over heads so that every op runs over dense rows."""

    cos: Tensor  # [n, H, D], 1 outside the band
    sin: Tensor  # [n, H, R/2]


def table_of(rope: Rope, spec: int, rows: slice, heads: int, width: int, dtype: torch.dtype) -> Table:
    """The table of one rope spec for the tokens in `rows`."""
    half = rope.cos.shape[-1]
    cos, sin = rope.cos[spec, rows].to(dtype), rope.sin[spec, rows].to(dtype)  # [n, R/2]
    full = torch.ones(cos.shape[0], heads, width, dtype=dtype, device=cos.device)
    pairs = torch.cat([cos, cos], -1) if rope.style == "half" else cos.repeat_interleave(2, -1)
    full[..., rope.start : rope.start + 2 * half] = pairs[:, None]
    return Table(full, sin[:, None].expand(-1, heads, -1).contiguous())


def turn(into: Bands, source: Bands, layer: int, table: Table, base: Tensor | None) -> None:
    """into[layer] = R source[layer] (+ base [n, H, D]). `into` must not share memory with `source`."""
    whole = source.whole[layer]
    if base is None:
        torch.mul(whole, table.cos, out=into.whole[layer])
    else:
        torch.addcmul(base, whole, table.cos, out=into.whole[layer])
    into.first[layer].addcmul_(source.second[layer], table.sin, value=-1)
    into.second[layer].addcmul_(source.first[layer], table.sin)
