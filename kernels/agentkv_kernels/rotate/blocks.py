"""R(δ) block by block: tables and views are made once per block of tokens, then layers turn one by one.

A block is small enough for its scratch and tables to stay in cache, and large enough for the cost of
starting an op to vanish.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from agentkv_kernels.rotate import half, interleaved
from agentkv_kernels.types import Rope

BLOCK_NUMBERS = 1 << 18  # of one layer and slot: 1 MiB in fp32, half of it in each of two cores' L2
_PAIRING: dict[str, Any] = {"half": half, "interleaved": interleaved}


def arithmetic(dtype: torch.dtype) -> torch.dtype:
    """The dtype a slot of `dtype` is computed in: fp64 for fp64, else fp32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def blocks(tokens: int, numbers_per_token: int) -> Iterator[slice]:
    """Cut 0..tokens into even runs whose rows fit BLOCK_NUMBERS."""
    most = max(1, BLOCK_NUMBERS // max(1, numbers_per_token))
    step = max(1, math.ceil(tokens / max(1, math.ceil(tokens / most))))
    for start in range(0, tokens, step):
        yield slice(start, min(start + step, tokens))


class BlockTurn:
    """Turns the layers of block [L, n, H, D], straight into `target` [L, n, H, D] where it can.

    `target` None: the caller stores the result itself, say by a row index. A call with `base` [n, H, D]
    adds it in the arithmetic dtype before anything is rounded.
    """

    def __init__(
        self, rope: Rope, rows: slice, specs: Sequence[int], block: Tensor, target: Tensor | None
    ) -> None:
        pairing = _PAIRING[rope.style]
        dtype, heads, width = arithmetic(block.dtype), *block.shape[2:]
        cos, sin = _angles(rope, rows, dtype)
        used = {spec for spec in specs if spec >= 0}
        self.tables = {spec: pairing.table(cos[spec], sin[spec], rope, heads, width) for spec in used}
        self.specs, self.block = specs, block
        plain = block.dtype == dtype and pairing.Turn.fits(block, rope)
        self.widened = None if plain else _scratch(block, dtype, rope.start)
        source = block if self.widened is None else self.widened.expand(block.shape)
        self.direct = target is not None and target.dtype == dtype and pairing.Turn.fits(target, rope)
        if target is not None and target.data_ptr() == source.data_ptr():
            self.direct = self.direct and not pairing.Turn.needs_other_memory
        into = (
            target
            if target is not None and self.direct
            else _scratch(block, dtype, rope.start).expand(block.shape)
        )
        self.turn = pairing.Turn(rope, source, into)

    def __call__(self, layer: int, base: Tensor | None = None) -> Tensor | None:
        """Turn one layer. Returns None if the result stands in the target, else [n, H, D] to store."""
        if self.widened is not None:
            self.widened.copy_(self.block[layer])
        held: Tensor = self.turn(layer, self.tables[self.specs[layer]], base)
        return None if self.direct else held


def _angles(rope: Rope, rows: slice, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin [S, n, R/2] of a block; [S, 1, R/2] where every token moves alike, as most chunks do."""
    cos, sin = rope.cos[:, rows], rope.sin[:, rows]
    if all(torch.equal(of, of[:, :1].expand_as(of)) for of in (cos, sin)):
        cos, sin = cos[:, :1], sin[:, :1]
    return cos.to(dtype), sin.to(dtype)


def _scratch(block: Tensor, dtype: torch.dtype, start: int) -> Tensor:
    """[n, H, D], laid out so that a band from `start` on can be seen as complex numbers."""
    tokens, heads, width = block.shape[1:]
    shift = start % 2
    padded = width + shift + (width + shift) % 2
    return torch.empty(tokens, heads, padded, dtype=dtype, device=block.device)[..., shift : shift + width]
