"""The live KV of one window: preallocated rows, edited in place, handed to transformers as its Cache.

Row and position id are the same number: the token in row r has its keys rotated to position r. Rotary
attention sees differences of positions only, so the live rows may start anywhere (`start`), and a slide
moves whichever side is smaller instead of the whole window.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer

from agentkv.errors import TooLong
from agentkv.kv import KVBlock
from agentkv.layout import Layout


class Holders:
    """How many windows hold the same buffers; each of them copies before it writes while there are others."""

    def __init__(self) -> None:
        self.count = 1
        self._lock = threading.Lock()  # forks are edited under locks of their own

    def add(self, number: int) -> None:
        with self._lock:
            self.count += number


class WindowKV:
    """Rows of KV in every layer. Slots are ``[L, capacity, H, D]``; rows ``start:end`` are live."""

    def __init__(self, layout: Layout, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        self.layout, self.dtype, self.device = layout, dtype, device
        self.slots = self._allocate(capacity)
        self.start = self.end = 0
        self.sources: dict[int, KVBlock] = {}
        """Half-precision caches: by uid, KV as it was before its first rotation, so that errors do not add
        up."""
        self._holders = Holders()

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
        if self._holders.count > 1:
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
        self._leave()

    def _leave(self) -> None:
        self._holders.add(-1)
        self._holders = Holders()

    def fork(self) -> WindowKV:
        """Another window over the same rows; whichever writes first copies."""
        twin = object.__new__(WindowKV)
        twin.__dict__.update(self.__dict__)
        twin.sources = dict(self.sources)
        self._holders.add(1)
        return twin

    def release(self) -> None:
        """Let the buffers go (a closed window)."""
        self.slots = self._allocate(0)
        self.start = self.end = 0
        self.sources = {}
        self._leave()

    def __del__(self) -> None:
        """A window that was dropped without being closed no longer keeps the others from writing in place."""
        if "_holders" in self.__dict__:  # absent when the first allocation failed
            self._holders.add(-1)

    def live(self) -> LiveCache:
        """transformers' view of these rows."""
        return LiveCache(self)


class Run(NamedTuple):
    """Neighbouring tokens to run through the model: int64 ids ``[T]`` for rows ``row : row + T``."""

    row: int
    ids: Tensor


class LiveCache(Cache):
    """Writes new tokens into the rows of a window and shows them with everything in front.

    runs: where the tokens of the next forward go; `Runner.run` sets it.
    """

    def __init__(self, kv: WindowKV) -> None:
        self.kv, self.runs = kv, tuple[Run, ...]()
        super().__init__(layers=[_LiveLayer(self, layer) for layer in range(kv.layout.layers)])

    def ends(self) -> list[tuple[int, int]]:
        """(tokens, end) of every run, counted from the first live row. Raises TooLong for rows that do not
        exist."""
        last = max(run.row + len(run.ids) for run in self.runs)
        if last > self.kv.capacity:
            raise TooLong(
                got=f"tokens for row {last - 1}",
                expected=f"rows up to {self.kv.capacity - 1}",
                do="grow the buffer",
            )
        return [(len(run.ids), run.row + len(run.ids) - self.kv.start) for run in self.runs]


class _LiveLayer(CacheLayerMixin):
    """One layer of a `LiveCache`: new rows in place, views out, never a concatenation."""

    is_sliding = False

    def __init__(self, cache: LiveCache, layer: int) -> None:
        super().__init__()
        self.cache, self.layer = cache, layer
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        return None

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Both ``[1, H, ΣT, D]``, run after run; returns all rows up to the last run's end, ``[1, H, N,
        D]`` views."""
        kv, runs = self.cache.kv, self.cache.runs
        views = []
        for slot, new in zip(kv.slots, (key_states, value_states), strict=True):
            rows, fresh, done = slot[self.layer], new[0].transpose(0, 1), 0  # [capacity, H, D], [ΣT, H, D]
            for run in runs:
                rows[run.row : run.row + len(run.ids)] = fresh[done : done + len(run.ids)]
                done += len(run.ids)
            last = runs[-1].row + len(runs[-1].ids)
            views.append(rows[kv.start : last].transpose(0, 1).unsqueeze(0))
        return views[0], views[1]

    def get_seq_length(self) -> int:
        return self.cache.runs[0].row - self.cache.kv.start

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return self.cache.kv.capacity - self.cache.kv.start


class Overlay(Cache):
    """Starts as the rows of a window in front of ``row`` and keeps new tokens to itself: audits write
    nothing back."""

    def __init__(self, kv: WindowKV, row: int) -> None:
        self.runs = tuple[Run, ...]()
        super().__init__(layers=[_OverlayLayer(kv, layer, row) for layer in range(kv.layout.layers)])

    def ends(self) -> list[tuple[int, int]]:
        """As `LiveCache.ends`; one run, which follows what is there."""
        (run,) = self.runs
        return [(len(run.ids), self.layers[0].get_seq_length() + len(run.ids))]


class _OverlayLayer(DynamicLayer):
    """transformers' growing layer, filled with views to begin with: its first update copies."""

    def __init__(self, kv: WindowKV, layer: int, row: int) -> None:
        super().__init__()
        self.keys, self.values = (s[layer, kv.start : row].transpose(0, 1).unsqueeze(0) for s in kv.slots)
        self.dtype, self.device, self.is_initialized = kv.dtype, kv.device, True
