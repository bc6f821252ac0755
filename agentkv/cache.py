"""The live KV of one window: preallocated rows, edited in place, handed to transformers as its Cache.

Row and position id are the same number: the token in row r has its keys rotated to position r. Rotary attention
sees differences of positions only, so the live rows may start anywhere (`start`), and a slide moves whichever
side is smaller instead of the whole window.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from agentkv.kv import KVBlock
from agentkv.models.families import Layout


class WindowKV:
    """Rows of KV in every layer. Slots are ``[L, capacity, H, D]``; rows ``start:end`` are live."""

    def __init__(self, layout: Layout, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        self.layout, self.dtype, self.device = layout, dtype, device
        self.slots = self._allocate(capacity)
        self.start = self.end = 0
        self._sharers = [1]  # how many windows hold these buffers; a fork copies before its first write

    def _allocate(self, capacity: int) -> tuple[Tensor, ...]:
        return tuple(
            torch.empty(self.layout.layers, capacity, s.heads, s.dim, dtype=self.dtype, device=self.device)
            for s in self.layout.slots
        )

    @property
    def capacity(self) -> int:
        return self.slots[0].shape[1]

    @property
    def row_bytes(self) -> int:
        """Bytes of one token over all layers and slots."""
        return sum(s.shape[0] * s.shape[2] * s.shape[3] * s.element_size() for s in self.slots)

    @property
    def nbytes(self) -> int:
        """Bytes of the live rows."""
        return (self.end - self.start) * self.row_bytes

    def view(self, first: int, last: int) -> KVBlock:
        """Rows ``first:last`` as views, for reading at once; `KVBlock.clone` to keep."""
        positions = torch.arange(first, last, device=self.device)
        return KVBlock(tuple(s[:, first:last] for s in self.slots), positions)

    def own(self) -> None:
        """Make the buffers this window's alone, by copying the live rows if a fork shares them."""
        if self._sharers[0] > 1:
            self._move_to(self.capacity)

    def grow(self, capacity: int) -> None:
        """At least ``capacity`` rows; the live rows keep their places."""
        if capacity > self.capacity:
            self._move_to(capacity)

    def _move_to(self, capacity: int) -> None:
        fresh = self._allocate(capacity)
        for new, old in zip(fresh, self.slots, strict=True):
            new[:, self.start : self.end] = old[:, self.start : self.end]
        self.slots = fresh
        self._sharers[0] -= 1
        self._sharers = [1]

    def fork(self) -> WindowKV:
        """Another window over the same rows; whichever writes first copies."""
        twin = object.__new__(WindowKV)
        twin.__dict__.update(self.__dict__)
        self._sharers[0] += 1
        return twin

    def release(self) -> None:
        """Let the buffers go (a closed window)."""
        self._sharers[0] -= 1
        self.slots = tuple(s[:, :0] for s in self._allocate(0))
        self.start = self.end = 0
        self._sharers = [1]

    def at(self, row: int) -> Cache:
        """transformers' view: tokens are written from ``row`` on and see the rows ``start:row`` in front."""
        return Cache(layers=[_LiveLayer(self, layer, row) for layer in range(self.layout.layers)])


class _LiveLayer(CacheLayerMixin):
    """One layer of `WindowKV.at`: writes new rows in place and returns views, never a concatenation."""

    is_sliding = False

    def __init__(self, kv: WindowKV, layer: int, row: int) -> None:
        super().__init__()
        self.kv, self.layer, self.row, self.filled = kv, layer, row, row
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        return None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Both ``[1, H, T, D]``; returns all rows up to the new ones as ``[1, H, P+T, D]`` views."""
        first, last = self.filled, self.filled + key_states.shape[-2]
        views = []
        for slot, new in zip(self.kv.slots, (key_states, value_states), strict=True):
            rows = slot[self.layer]  # [capacity, H, D]
            rows[first:last] = new[0].transpose(0, 1)
            views.append(rows[self.kv.start : last].transpose(0, 1).unsqueeze(0))
        self.filled = last
        return views[0], views[1]

    def get_seq_length(self) -> int:
        return self.filled - self.kv.start

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return self.kv.capacity - self.kv.start


class Overlay(CacheLayerMixin):
    """A layer that reads rows ``start:row`` of a window and keeps new tokens to itself (nothing is written back).

    For questions that must not change the window (audit).
    """

    is_sliding = False

    def __init__(self, kv: WindowKV, layer: int, row: int) -> None:
        super().__init__()
        self.parts = [s[layer, kv.start : row].transpose(0, 1).unsqueeze(0) for s in kv.slots]  # [1, H, P, D]
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        return None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.parts = [torch.cat([p, n], dim=-2) for p, n in zip(self.parts, (key_states, value_states), strict=True)]
        return self.parts[0], self.parts[1]

    def get_seq_length(self) -> int:
        return self.parts[0].shape[-2]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1


def overlay(kv: WindowKV, row: int) -> Cache:
    """A cache that starts as the rows in front of ``row`` and never touches them."""
    return Cache(layers=[Overlay(kv, layer, row) for layer in range(kv.layout.layers)])
