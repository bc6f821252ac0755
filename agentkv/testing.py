"""For tests, ours and yours: an engine without a model, and what every store and every backend must do.

`recording_engine()` opens windows whose KV are token ids, so that a test sees in microseconds which token an
edit left in which row. To test a store or a backend of your own, subclass `StoreConformance` or
`BackendConformance` under a name that starts with ``Test``, build yours in `make`, and let pytest collect it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from agentkv_orchestrator.lineage import Lineage
from agentkv_orchestrator.residency import Context
from torch import Tensor, nn

from agentkv.backends.base import Backend
from agentkv.backends.recording import VOCABULARY, RecordingBackend
from agentkv.cache import LiveCache, Overlay, Run, WindowKV
from agentkv.config import EngineConfig
from agentkv.engine import Engine
from agentkv.forward import Runner
from agentkv.inputs import Ids
from agentkv.kv import KVBlock
from agentkv.models.hf import LoadedModel
from agentkv.store.base import Key, Note, Store, Stored

__all__ = [
    "BackendConformance",
    "FakeTokenizer",
    "RecordingBackend",
    "RecordingEngine",
    "StoreConformance",
    "recording_engine",
]


class FakeTokenizer:
    """One token per word: "w3 w4" is [3, 4]; other words get an id from their letters."""

    eos_token_id = 0
    chat_template = None

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [self._id(word) for word in text.split()]}

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return " ".join(f"w{token}" for token in ids)

    def _id(self, word: str) -> int:
        number = word[1:] if word.startswith("w") else ""
        return (int(number) if number.isdigit() else sum(word.encode())) % VOCABULARY


class _NoModel(nn.Module):
    """What an engine reads of a model: its device, its type and the size of its vocabulary."""

    config = SimpleNamespace(model_type="none")

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 1)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embedding


class _RecordingRunner(Runner):
    """Decode steps, which go past the backend, are recorded like any prefill."""

    def __init__(self, model: nn.Module, backend: RecordingBackend) -> None:
        super().__init__(model)
        self.backend = backend

    def run(self, runs: Sequence[Run], cache: LiveCache | Overlay, keep: int) -> Tensor:
        assert isinstance(cache, LiveCache)  # overlays are for audits, which need a model
        return self.backend.prefill(cache.kv, runs, keep)


class RecordingEngine(Engine):
    """An engine over a `RecordingBackend`: everything but the model is real. See `recording_engine`."""

    backend: RecordingBackend

    def __init__(self, recorder: RecordingBackend, store: Store | None, config: EngineConfig) -> None:
        self._recorder, model = recorder, _NoModel()
        super().__init__(
            LoadedModel(model, FakeTokenizer(), recorder.layout, "0" * 40, "none"), config, store
        )
        self.runner = _RecordingRunner(model, recorder)

    def __enter__(self) -> RecordingEngine:
        return self

    def _backend(self, sink: Ids) -> Backend:
        return self._recorder


def recording_engine(
    max_positions: int = 4096, store: Store | None = None, **settings: Any
) -> RecordingEngine:
    """An engine without a model: ``engine.backend.calls`` tells what plans did, `rows` what a window holds.

    Windows do all they do elsewhere but `audit`, which compares with a model. settings: fields of
    `EngineConfig`.
    """
    return RecordingEngine(RecordingBackend(max_positions), store, EngineConfig(**settings))


def rows(kv: WindowKV) -> list[int]:
    """Token ids in the live rows of a window of a `RecordingEngine`, in order."""
    found: list[int] = kv.slots[0][0, kv.start : kv.end, 0, 0].tolist()
    return found


def kv_block(tokens: int, seed: int = 0, layers: int = 2, first: int = 0) -> KVBlock:
    """Random fp32 KV ``[layers, tokens, 3, 4]`` in two slots; equal arguments give equal bits."""
    draw = torch.Generator().manual_seed(seed)
    slots = tuple(torch.randn(layers, tokens, 3, 4, generator=draw) for _ in range(2))
    return KVBlock(slots, torch.arange(first, first + tokens))


def same_bits(a: KVBlock, b: KVBlock) -> bool:
    """Equal in every bit, positions included."""
    return torch.equal(a.positions, b.positions) and all(
        torch.equal(x, y) for x, y in zip(a.slots, b.slots, strict=True)
    )


class StoreConformance:
    """What `Store` promises, test by test."""

    def make(self, budget: int) -> Store:
        """An empty store that may hold ``budget`` bytes of tensors."""
        raise NotImplementedError

    unit = kv_block(4).nbytes
    """Bytes of the blocks that the tests store."""

    def test_an_entry_comes_back_in_every_bit(self) -> None:
        store, block = self.make(10 * self.unit), kv_block(4, first=7)
        assert store.put(_key(1), block)
        assert same_bits(_block(store, _key(1)), block)

    def test_kind_chunk_and_context_all_tell_entries_apart(self) -> None:
        store = self.make(10 * self.unit)
        keys = [
            Key("conditioned", "a", "b"),
            Key("patch", "a", "b"),
            Key("conditioned", "b", "a"),
            Key("conditioned", "ab"),
            Key("canonical", "a"),
        ]
        for seed, key in enumerate(keys):
            store.put(key, kv_block(4, seed))
        for seed, key in enumerate(keys):
            assert same_bits(_block(store, key), kv_block(4, seed))

    def test_what_is_not_there_is_none(self) -> None:
        assert self.make(self.unit).get(_key(1)) is None

    def test_the_copy_is_private(self) -> None:
        """Rows live on in their window after a stash; the store must not see what happens to them."""
        store, live = self.make(10 * self.unit), kv_block(8)
        store.put(_key(1), live.part(2, 6))
        for slot in live.slots:
            slot.fill_(torch.nan)
        assert same_bits(_block(store, _key(1)), kv_block(8).part(2, 6))

    def test_a_view_does_not_pin_what_it_was_cut_from(self) -> None:
        store = self.make(10 * self.unit)
        store.put(_key(1), kv_block(400).part(2, 6))
        assert sum(s.untyped_storage().nbytes() for s in _block(store, _key(1)).slots) == self.unit

    def test_an_entry_put_twice_counts_once(self) -> None:
        store = self.make(10 * self.unit)
        store.put(_key(1), kv_block(4, seed=1))
        store.put(_key(1), kv_block(4, seed=2))
        assert store.nbytes == self.unit
        assert same_bits(_block(store, _key(1)), kv_block(4, seed=2))

    def test_the_budget_is_never_exceeded(self) -> None:
        budget, draw = 5 * self.unit, random.Random(0)
        store = self.make(budget)
        for seed in range(60):
            store.put(_key(draw.randrange(12)), kv_block(draw.randrange(1, 12), seed))
            assert store.nbytes == sum(_block(store, key).nbytes for key in tuple(store.keys()))
            assert store.nbytes <= budget

    def test_the_least_recently_used_leaves_first(self) -> None:
        store = self.make(3 * self.unit)
        for name in (1, 2, 3):
            store.put(_key(name), kv_block(4, name))
        store.get(_key(1))
        assert tuple(store.keys()) == (_key(2), _key(3), _key(1))
        store.put(_key(4), kv_block(4))
        assert tuple(store.keys()) == (_key(3), _key(1), _key(4))

    def test_what_can_never_fit_changes_nothing(self) -> None:
        store = self.make(2 * self.unit)
        for name in (1, 2):
            store.put(_key(name), kv_block(4, name))
        assert not store.put(_key(3), kv_block(9))
        assert tuple(store.keys()) == (_key(1), _key(2))
        assert store.nbytes == 2 * self.unit
        assert store.get(_key(3)) is None

    def test_a_dropped_entry_is_gone_with_its_bytes(self) -> None:
        store = self.make(2 * self.unit)
        store.put(_key(1), kv_block(4))
        assert store.drop(_key(1))
        assert not store.drop(_key(1))
        assert (store.get(_key(1)), store.nbytes, tuple(store.keys())) == (None, 0, ())

    def test_what_is_held_for_a_chunk_comes_with_its_notes(self) -> None:
        store = self.make(10 * self.unit)
        note = Note(0.5, Context(chunks=Lineage.of(("x", "y")), tokens=7))
        store.put(Key("conditioned", "a", "c"), kv_block(4), note)
        store.put(Key("canonical", "a"), kv_block(4))
        store.put(Key("canonical", "b"), kv_block(4))
        assert _notes(store, "a") == {Key("conditioned", "a", "c"): note, Key("canonical", "a"): Note()}
        assert _notes(store, "b", "z") == {Key("canonical", "b"): Note()}
        found = store.get(Key("conditioned", "a", "c"))
        assert found is not None
        assert found.note == note
        store.put(Key("conditioned", "a", "c"), kv_block(4))
        store.drop(Key("canonical", "a"))
        assert _notes(store, "a") == {Key("conditioned", "a", "c"): Note()}

    def test_looking_is_no_use(self) -> None:
        store = self.make(2 * self.unit)
        for name in (1, 2):
            store.put(_key(name), kv_block(4))
        store.held([_key(1).chunk])
        store.put(_key(3), kv_block(4))
        assert not store.held([_key(1).chunk])
        assert tuple(store.keys()) == (_key(2), _key(3))

    def test_threads_may_fight_over_it(self) -> None:
        """Entries are whole, the books right and the budget kept, whoever comes first."""
        budget = 6 * self.unit
        store, torn = self.make(budget), list[Key]()

        def fight(seed: int) -> None:
            draw = random.Random(seed)
            for _ in range(150):
                name = draw.randrange(9)
                match draw.randrange(3):
                    case 0:
                        store.put(_key(name), kv_block(4, name))
                    case 1:
                        found = store.get(_key(name))
                        if found and not same_bits(_kv(found), kv_block(4, name)):
                            torn.append(_key(name))
                    case _:
                        store.drop(_key(name))
                if store.nbytes > budget:
                    torn.append(_key(-1))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(fight, range(8)))
        assert not torn
        assert store.nbytes == len(tuple(store.keys())) * self.unit


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


def _key(name: int) -> Key:
    return Key("conditioned", f"chunk{name}", "context")


def _block(store: Store, key: Key) -> KVBlock:
    stored = store.get(key)
    assert stored is not None
    return _kv(stored)


def _kv(stored: Stored) -> KVBlock:
    assert isinstance(stored.entry, KVBlock)
    return stored.entry


def _notes(store: Store, *chunks: str) -> dict[Key, Note]:
    return {key: found.note for key, found in store.held(chunks).items()}
