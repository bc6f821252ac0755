"""KV of one run of tokens, taken out of a cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class KVBlock:
    """The KV of ``T`` tokens in every layer, apart from any cache.

    slots: one tensor per cache slot of the family (keys, values), each ``[L, T, H, D]``.
    positions: int64 ``[T]``, the position ids at which the rope bands of ``slots`` stand; the first axis
    (time) where the model has three. A block moves as a whole: one δ for all of its tokens and axes.
    """

    slots: tuple[Tensor, ...]
    positions: Tensor

    @property
    def tokens(self) -> int:
        return int(self.positions.shape[0])

    @property
    def nbytes(self) -> int:
        return sum(s.numel() * s.element_size() for s in self.slots)

    @property
    def owned(self) -> bool:
        """Whether the tensors are all there is of their memory: keeping them pins nothing else."""
        return all(s.is_contiguous() and s.untyped_storage().nbytes() == s.nbytes for s in self.slots)

    def clone(self) -> KVBlock:
        """A copy that shares no memory: views would pin the whole cache they were cut from."""
        return KVBlock(
            tuple(s.clone(memory_format=torch.contiguous_format) for s in self.slots), self.positions.clone()
        )

    def to(self, device: torch.device | str) -> KVBlock:
        """The slots on ``device``: this very block where they are already. Positions stay on the CPU."""
        slots = tuple(s.to(device) for s in self.slots)
        return (
            self
            if all(a is b for a, b in zip(slots, self.slots, strict=True))
            else replace(self, slots=slots)
        )

    def part(self, start: int, stop: int) -> KVBlock:
        """Tokens ``start:stop`` as views."""
        return KVBlock(tuple(s[:, start:stop] for s in self.slots), self.positions[start:stop])
