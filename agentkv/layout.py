"""What one token's cache looks like: its slots and, in each, the band that carries a position."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from agentkv_kernels.types import Rope
from torch import Tensor

from agentkv.rope import LayerRopes, build


@dataclass(frozen=True, eq=False)
class SlotSpec:
    """One of the tensors a layer caches, [T, heads, dim].

    name: where transformers keeps it, "keys" or "values" (an MLA model keeps its rope key in "values").
    rope: the band that turns with the position; None for a slot of pure content.
    """

    name: str
    heads: int
    dim: int
    rope: LayerRopes | None = None

    @property
    def features(self) -> int:
        """Numbers a token stores here per layer: d = H * D."""
        return self.heads * self.dim


@dataclass(frozen=True, eq=False)
class Layout:
    """The cache of one loaded model, and what the attention over it needs to know.

    layers: L. max_positions: first position the model was not built for, or from which on a move would not be
    exact (another table, a query scale that grows with the position). query_heads: heads of Q.
    scaling: factor on q·k before the softmax. rope_type: transformers' name; several joined by "/".
    axes: numbers in a position id (3 for M-RoPE: time, height, width); a chunk moves by one δ on all of them.
    """

    slots: tuple[SlotSpec, ...]
    layers: int
    query_heads: int
    max_positions: int
    scaling: float
    rope_type: str
    axes: int = 1

    def ropes(self, delta: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Rope | None, ...]:
        """Per slot, the rope that moves T tokens by `delta` (int64 [T]); None where nothing turns.

        Tables are `dtype` on delta's device: fp32 for caches up to fp32, fp64 for an fp64 cache.
        """
        return tuple(build(slot.rope, delta, dtype) if slot.rope else None for slot in self.slots)

    def token_bytes(self, dtype: torch.dtype) -> int:
        """Bytes one token takes over all slots and layers when stored as `dtype`."""
        return self.layers * sum(slot.features for slot in self.slots) * dtype.itemsize
