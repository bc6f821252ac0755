"""Interleaved pairs: dim 2i turns with dim 2i + 1, so a pair is one complex number and R one product."""

import torch
from torch import Tensor

from agentkv_kernels.types import Rope


def table(cos: Tensor, sin: Tensor, _rope: Rope, _heads: int, _width: int) -> Tensor:
    """Complex [n, 1, R/2] of cos, sin [n, R/2]; n is 1 when δ is the same for every token."""
    return torch.complex(cos, sin)[:, None]


class Turn:
    """into[l] = R source[l] + base, layer by layer. `into` may be `source` itself."""

    needs_other_memory = False

    def __init__(self, rope: Rope, source: Tensor, into: Tensor) -> None:
        self.source, self.into = source.unbind(0), into.unbind(0)  # L times [n, H, D]
        self.source_pairs, self.into_pairs = _pairs(source, rope).unbind(0), _pairs(into, rope).unbind(0)
        partial = 2 * rope.cos.shape[-1] < source.shape[-1]
        self.copies_rest = partial and source.data_ptr() != into.data_ptr()

    @staticmethod
    def fits(block: Tensor, rope: Rope) -> bool:
        """Whether block [L, n, H, D] can be seen as complex numbers where it lies."""
        *steps, last = block.stride()
        even = all(step % 2 == 0 for step, size in zip(steps, block.shape[:-1], strict=True) if size > 1)
        return last == 1 and even and (block.storage_offset() + rope.start) % 2 == 0

    def __call__(self, layer: int, angles: Tensor, base: Tensor | None) -> Tensor:
        into = self.into[layer]
        if self.copies_rest:
            into.copy_(self.source[layer])
        torch.mul(self.source_pairs[layer], angles, out=self.into_pairs[layer])
        return into if base is None else into.add_(base)


def _pairs(block: Tensor, rope: Rope) -> Tensor:
    band = block[..., rope.start : rope.start + 2 * rope.cos.shape[-1]]
    return torch.view_as_complex(band.unflatten(-1, (-1, 2)))
