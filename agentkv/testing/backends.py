"""What every backend must do."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from agentkv.backends.base import Backend
from agentkv.backends.recording import VOCABULARY
from agentkv.cache import Run, WindowKV
from agentkv.inputs import Ids
from agentkv.kv import KVBlock
from agentkv.testing.blocks import same_bits


class BackendConformance:
    """What `Backend` promises, test by test."""

    tolerance = 0.0
    """Largest difference, relative to the largest number, where a backend need not be exact to the bit."""
    vocabulary = VOCABULARY

    def make(self) -> Backend:
        """A backend whose patches are of full rank for 24 tokens."""
        raise NotImplementedError

    def test_a_new_window_is_empty(self) -> None:
        backend = self.make()
        kv = backend.new_kv(16)
        assert (kv.start, kv.end, kv.capacity) == (0, 0, 16)
        wanted = [(backend.layout.layers, 16, s.heads, s.dim) for s in backend.layout.slots]
        assert [tuple(s.shape) for s in kv.slots] == wanted

    def test_a_read_is_a_copy_that_knows_its_rows(self) -> None:
        backend, kv, _ = self._filled(24)
        block = backend.read(kv, 3, 9)
        before = block.clone()
        for slot in kv.slots:
            slot.fill_(0)
        assert same_bits(block, before)
        assert block.positions.tolist() == list(range(3, 9))

    def test_a_prefill_writes_its_own_rows_alone(self) -> None:
        backend, kv, _ = self._filled(24)
        before = backend.read(kv, 0, 24)
        backend.prefill(kv, [Run(8, self._ids(5, seed=1))], keep=0)
        after = backend.read(kv, 0, 24)
        assert same_bits(after.part(0, 8), before.part(0, 8))
        assert same_bits(after.part(13, 24), before.part(13, 24))
        assert not same_bits(after.part(8, 13), before.part(8, 13))

    def test_a_prefill_sees_all_rows_in_front(self) -> None:
        """One forward is as good as two: the second half attends what the first wrote."""
        backend, kv, ids = self._filled(24)
        halves = self._empty(backend, 24)
        backend.prefill(halves, [Run(0, ids[:10])], keep=0)
        found = backend.prefill(halves, [Run(10, ids[10:])], keep=3)
        wanted = backend.prefill(kv, [Run(0, ids)], keep=3)
        self._same(found, wanted)
        self._same_kv(backend.read(halves, 0, 24), backend.read(kv, 0, 24))

    def test_runs_with_a_gap_are_prefills_in_turn(self) -> None:
        backend, kv, _ = self._filled(24)
        _, twin, _ = self._filled(24, backend)
        a, b = Run(2, self._ids(4, seed=2)), Run(15, self._ids(6, seed=3))
        found = backend.prefill(kv, [a, b], keep=2)
        backend.prefill(twin, [a], keep=0)
        wanted = backend.prefill(twin, [b], keep=2)
        self._same(found, wanted)
        self._same_kv(backend.read(kv, 0, 24), backend.read(twin, 0, 24))

    def test_logits_are_those_of_the_last_tokens(self) -> None:
        backend, kv, ids = self._filled(24)
        four = backend.prefill(kv, [Run(0, ids)], keep=4)
        assert four.shape == (4, self.vocabulary)
        self._same(backend.prefill(kv, [Run(0, ids)], keep=1), four[-1:])
        assert backend.prefill(kv, [Run(0, ids)], keep=0).numel() == 0

    def test_placing_where_it_stood_copies_bits(self) -> None:
        backend, kv, _ = self._filled(24)
        block = backend.read(kv, 4, 11)
        for slot in kv.slots:
            slot[:, 4:11] = 0
        backend.place(kv, 4, block)
        assert same_bits(backend.read(kv, 4, 11), block)

    def test_a_moved_block_is_what_a_prefill_there_gives(self) -> None:
        backend, kv, ids = self._filled(12)
        there = backend.new_kv(24)
        there.start, there.end = 9, 21
        backend.prefill(there, [Run(9, ids)], keep=0)
        moved = self._empty(backend, 24)
        backend.place(moved, 9, backend.read(kv, 0, 12))
        self._same_kv(backend.read(moved, 9, 21), backend.read(there, 9, 21))

    def test_a_canonical_depends_on_its_ids_alone(self) -> None:
        backend, _, ids = self._filled(24)
        first = backend.canonical(ids)
        backend.canonical(self._ids(7, seed=5))
        assert first.tokens == 24
        assert same_bits(backend.canonical(ids), first)

    def test_a_canonical_and_its_patch_are_the_conditioned_kv(self) -> None:
        backend, kv, ids = self._filled(40)
        conditioned = backend.read(kv, 16, 40)
        canonical = backend.canonical(ids[16:])
        patch = backend.form(conditioned, canonical)
        backend.place(kv, 16, canonical, patch)
        self._same_kv(backend.read(kv, 16, 40), conditioned)

    def _ids(self, count: int, seed: int = 0) -> Ids:
        return np.random.default_rng(seed).integers(3, self.vocabulary, count, dtype=np.int64)

    def _empty(self, backend: Backend, count: int) -> WindowKV:
        kv = backend.new_kv(count)
        for slot in kv.slots:
            slot.fill_(0)
        kv.end = count
        return kv

    def _filled(self, count: int, backend: Backend | None = None) -> tuple[Backend, WindowKV, Ids]:
        backend = backend or self.make()
        kv, ids = self._empty(backend, count), self._ids(count)
        backend.prefill(kv, [Run(0, ids)], keep=0)
        return backend, kv, ids

    def _same(self, found: Tensor, wanted: Tensor) -> None:
        error = (found.double() - wanted.double()).abs().max() / wanted.double().abs().max()
        assert float(error) <= self.tolerance  # false for NaN

    def _same_kv(self, found: KVBlock, wanted: KVBlock) -> None:
        for a, b in zip(found.slots, wanted.slots, strict=True):
            self._same(a, b)
