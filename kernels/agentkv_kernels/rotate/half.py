"""Half-split pairs: dim i turns with dim i + R/2."""

from typing import NamedTuple

import torch
from torch import Tensor

from agentkv_kernels.types import Rope


class Table(NamedTuple):
    """One spec's angles, spelled out over heads (or one row for all) so that ops run over dense rows."""

    cos: Tensor  # [n, H, D] or [1, 1, D], 1 outside the band
    sin: Tensor  # [n, H, R/2] or [1, 1, R/2]


def table(cos: Tensor, sin: Tensor, rope: Rope, heads: int, width: int) -> Table:
    """Spell out cos, sin [n, R/2], or [1, R/2] when δ is the same for every token."""
    rows, half = cos.shape
    heads = heads if rows > 1 else 1
    full = cos.new_ones(rows, heads, width)
    full[..., rope.start : rope.start + 2 * half] = torch.cat([cos, cos], -1)[:, None]
    return Table(full, sin[:, None].expand(-1, heads, -1).contiguous())


class Turn:
    """into[l] = R source[l] + base, layer by layer. `into` must share no memory with `source`."""

    needs_other_memory = True

    def __init__(self, rope: Rope, source: Tensor, into: Tensor) -> None:
        half, start = rope.cos.shape[-1], rope.start
        self.source, self.into = source.unbind(0), into.unbind(0)  # L times [n, H, D]
        sides = (slice(start, start + half), slice(start + half, start + 2 * half))
        self.source_sides = [source[..., side].unbind(0) for side in sides]
        self.into_sides = [into[..., side].unbind(0) for side in sides]

    @staticmethod
    def fits(_block: Tensor, _rope: Rope) -> bool:
        """Whether _block [L, n, H, D] can be turned without a copy: at any strides."""
        return True

    def __call__(self, layer: int, angles: Table, base: Tensor | None) -> Tensor:
        into = self.into[layer]
        if base is None:
            torch.mul(self.source[layer], angles.cos, out=into)
        else:
            torch.addcmul(base, self.source[layer], angles.cos, out=into)
        self.into_sides[0][layer].addcmul_(self.source_sides[1][layer], angles.sin, value=-1)
        self.into_sides[1][layer].addcmul_(self.source_sides[0][layer], angles.sin)
        return into
