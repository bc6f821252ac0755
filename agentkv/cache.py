"""The live KV of one window: preallocated rows, edited in place, handed to transformers as its Cache.

Every row knows the position id its keys stand at; without images that is the row's number. Rotary attention
sees differences of positions only, so the live rows may start anywhere (`start`), and a slide moves whichever
side is smaller instead of the whole window.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer

from agentkv.errors import TooLong
from agentkv.kv import KVBlock
from agentkv.layout import Layout
from agentkv.media import Media


class Holders:
    """How many windows hold the same buffers; each of them copies before it writes while there are others."""

    def __init__(self) -> None:
        self.count = 1
        self._lock = threading.Lock()  # forks are edited under locks of their own

    def add(self, number: int) -> None:
        with self._lock:
            self.count += number


class WindowKV:
    """Rows of KV in every layer. Slots are ``[L, capacity, H, D]``; rows ``start:end`` are live.

    positions: int64 ``[capacity]`` on the CPU, the position id (first axis) of every row that was written.
    """

    def __init__(self, layout: Layout, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        self.layout, self.dtype, self.device = layout, dtype, device
        self.slots = self._allocate(capacity)
        self.positions = torch.zeros(capacity, dtype=torch.int64)
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
        return KVBlock(tuple(s[:, first:last] for s in self.slots), self.positions[first:last])

    def own(self) -> None:
        """Make the buffers this window's alone, by copying the live rows if a fork shares them."""
        if self._holders.count > 1:
            self._move_to(self.capacity)

    def clear(self, start: int, capacity: int) -> None:
        """No live rows, the first one to come at ``start``, in fresh buffers."""
        self.slots = self._allocate(capacity)
        self.positions = torch.zeros(capacity, dtype=torch.int64)
        self.start = self.end = start
        self._leave()

    def grow(self, capacity: int) -> None:
        """At least ``capacity`` rows; the live rows keep their places."""
        if capacity > self.capacity:
            self._move_to(capacity)

    def _move_to(self, capacity: int) -> None:
        fresh, live = self._allocate(capacity), slice(self.start, self.end)
        for new, old in zip(fresh, self.slots, strict=True):
            new[:, live] = old[:, live]
        positions = torch.zeros(capacity, dtype=torch.int64)
        positions[live] = self.positions[live]
        self.slots, self.positions = fresh, positions
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
        self.slots, self.positions = self._allocate(0), self.positions[:0]
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


@dataclass(frozen=True, eq=False)
class Run:
    """Neighbouring tokens to run through the model: int64 ids ``[T]`` for rows ``row : row + T``.

    ids: an array or a tensor. position: position id of the first token; None where rows are positions.
    media: what the tokens stand for, when they are those of one image.
    """

    row: int
    ids: Any
    position: int | None = None
    media: Media | None = None

    @property
    def stop(self) -> int:
        return self.row + len(self.ids)

    @property
    def first(self) -> int:
        """Position id of the first token."""
        return self.row if self.position is None else self.position

    @property
    def position_stop(self) -> int:
        """Position id of whatever follows: an image may end before its last row's time axis says so."""
        return self.first + (len(self.ids) if self.media is None else self.media.span)

    def positions(self, axes: int = 1) -> Tensor:
        """int64 ``[axes, T]``: where each token stands, on each axis of the model's positions."""
        offsets = torch.arange(len(self.ids))[None] if self.media is None else self.media.offsets
        return (offsets[:axes] + self.first).expand(axes, -1)


class LiveCache(Cache):
    """Writes new tokens into the rows of a window and shows them with everything in front.

    runs: where the tokens of the next forward go; `Runner.run` sets it through `expect`.
    """

    def __init__(self, kv: WindowKV) -> None:
        self.kv, self.runs = kv, tuple[Run, ...]()
        super().__init__(layers=[_LiveLayer(self, layer) for layer in range(kv.layout.layers)])

    def expect(self, runs: Sequence[Run]) -> list[Stretch]:
        """Take in what the next forward runs; returns its stretches without a gap.

        Raises TooLong for rows that do not exist.
        """
        self.runs = tuple(runs)
        last = max(run.stop for run in runs)
        if last > self.kv.capacity:
            raise TooLong(
                got=f"tokens for row {last - 1}",
                expected=f"rows up to {self.kv.capacity - 1}",
                do="grow the buffer",
            )
        for run in runs:
            self.kv.positions[run.row : run.stop] = run.positions()[0]
        return _stretches(runs, self.kv.start)


Stretch = tuple[int, int, tuple[tuple[int, int], ...]]
"""Tokens, the row behind them (counted from the first that is seen), and the ranges of the tokens that see
each other both ways: what `agentkv.attention.runs.Span` takes."""


def _stretches(runs: Sequence[Run], start: int) -> list[Stretch]:
    """Runs that are neighbours as one; rows are counted from ``start``."""
    found: list[Stretch] = []
    for run in runs:
        first, both = run.row - start, run.media.both_ways if run.media else ()
        tokens, _, before = found.pop() if found and found[-1][1] == first else (0, 0, ())
        both = tuple((tokens + a, tokens + b) for a, b in both)
        found.append((tokens + len(run.ids), run.stop - start, (*before, *both)))
    return found


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
                rows[run.row : run.stop] = fresh[done : done + len(run.ids)]
                done += len(run.ids)
            views.append(rows[kv.start : runs[-1].stop].transpose(0, 1).unsqueeze(0))
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
        super().__init__(layers=[_OverlayLayer(kv, layer, row) for layer in range(kv.layout.layers)])

    def expect(self, runs: Sequence[Run]) -> list[Stretch]:
        """As `LiveCache.expect`; the runs are neighbours, and follow what is there."""
        return _stretches(runs, runs[0].row - self.layers[0].get_seq_length())


class _OverlayLayer(DynamicLayer):
    """transformers' growing layer, filled with views to begin with: its first update copies."""

    def __init__(self, kv: WindowKV, layer: int, row: int) -> None:
        super().__init__()
        self.keys, self.values = (s[layer, kv.start : row].transpose(0, 1).unsqueeze(0) for s in kv.slots)
        self.dtype, self.device, self.is_initialized = kv.dtype, kv.device, True
