"""What every store must do."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from agentkv_kernels.types import Factors
from agentkv_orchestrator.chunks import digest
from agentkv_orchestrator.lineage import Lineage
from agentkv_orchestrator.residency import Context

from agentkv.kv import KVBlock
from agentkv.media import Features, Media
from agentkv.patches import Patch
from agentkv.store.base import Key, Note, Origin, Store, Stored
from agentkv.store.tenancy import TenantStore
from agentkv.testing.blocks import kv_block, same_bits

TOKENS = 24
"""Of the blocks that most tests store: what a store adds to each is little beside them."""


class StoreConformance:
    """What `Store` promises, test by test. Stores that write later are flushed before they are asked."""

    def make(self, budget: int) -> Store:
        """An empty store that may hold ``budget`` bytes."""
        raise NotImplementedError

    def make_for(self, blocks: float) -> Store:
        """A store that has room for so many blocks of 24 tokens, and for half a block more."""
        measured = self.make(1 << 24)
        measured.put(_key(1), kv_block(TOKENS))
        measured.flush()
        unit = measured.nbytes
        measured.drop(_key(1))
        return self.make(int((blocks + 0.5) * unit))

    def test_an_entry_comes_back_in_every_bit(self) -> None:
        store, block = self.make_for(10), kv_block(TOKENS, first=7)
        assert store.put(_key(1), block)
        store.flush()
        assert same_bits(_block(store, _key(1)), block)

    def test_a_block_is_read_into_the_rows_that_are_given_or_beside_them(self) -> None:
        """Rows in the middle of larger buffers; those that do not fit are left alone or are void."""
        store, block = self.make_for(10), kv_block(TOKENS, first=7)
        store.put(_key(1), block)
        store.flush()
        for tokens, dtype in ((TOKENS, torch.float32), (TOKENS, torch.float64), (TOKENS - 1, torch.float32)):
            buffers = tuple(torch.full((2, TOKENS + 8, 3, 4), 5, dtype=dtype) for _ in range(2))
            rows = KVBlock(tuple(x[:, 4 : 4 + tokens] for x in buffers), torch.zeros(tokens))
            assert store.get(_key(2), rows) is None
            assert same_bits(_kv(store.get(_key(1), rows)), block)
            for x in buffers:
                assert (x[:, :4] == 5).all()
                assert (x[:, 4 + tokens :] == 5).all()
                x.zero_()
            assert same_bits(_block(store, _key(1)), block)

    def test_every_kind_of_entry_comes_back(self) -> None:
        store = self.make_for(10)
        patch, media = _patch(), _media()
        store.put(Key("patch", "a", "b"), patch)
        store.put(Key("features", "ff"), media)
        store.flush()
        assert _same(store.get(Key("patch", "a", "b")), patch)
        assert _same(store.get(Key("features", "ff")), media)

    def test_what_it_was_computed_from_comes_back(self) -> None:
        store, ids = self.make_for(10), np.arange(24, dtype=np.int64)
        origin = Origin(ids, b"\x01\x02", "f" * 40)
        key = Key("canonical", digest(ids, origin.fingerprint, origin.modality))
        store.put(key, kv_block(TOKENS), origin=origin)
        store.flush()
        store.put(_key(1), kv_block(TOKENS))
        store.flush()
        found = store.get(key)
        assert found is not None
        assert origin.same(found.origin)
        told = store.origins([key, _key(1), _key(2)])
        assert list(told) == [key]
        assert origin.same(told[key])

    def test_kind_chunk_context_and_tenant_all_tell_entries_apart(self) -> None:
        store = self.make_for(10)
        keys = [
            Key("conditioned", "a", "b"),
            Key("patch", "a", "b"),
            Key("conditioned", "b", "a"),
            Key("conditioned", "ab"),
            Key("canonical", "a"),
            Key("canonical", "a", tenant="a"),
            Key("conditioned", "a", "b", "a"),
        ]
        for seed, key in enumerate(keys):
            store.put(key, kv_block(TOKENS, seed))
        store.flush()
        for seed, key in enumerate(keys):
            assert same_bits(_block(store, key), kv_block(TOKENS, seed))
        assert set(store.held(["a"], "a")) == set(store.keys("a")) == {keys[5], keys[6]}
        assert set(store.keys("")) == set(keys[:5])

    def test_keys_may_hold_anything(self) -> None:
        store = self.make_for(10)
        keys = [Key("canonical", name) for name in ("../../a", "a/b", "/etc/x", "a\x00b", "ä" * 99, "'; --")]
        for seed, key in enumerate(keys):
            store.put(key, kv_block(TOKENS, seed))
        store.flush()
        assert set(store.keys()) == set(keys)
        for seed, key in enumerate(keys):
            assert same_bits(_block(store, key), kv_block(TOKENS, seed))

    def test_what_is_not_there_is_none_and_counted(self) -> None:
        store = self.make_for(1)
        assert store.get(_key(1)) is None
        store.put(_key(1), kv_block(TOKENS))
        store.flush()
        _block(store, _key(1))
        stats = store.stats()
        assert (stats.hits, stats.misses["absent"], stats.entries, stats.nbytes) == (1, 1, 1, store.nbytes)

    def test_the_copy_is_private(self) -> None:
        """Rows live on in their window after a stash; the store must not see what happens to them."""
        store, live = self.make_for(10), kv_block(2 * TOKENS)
        store.put(_key(1), live.part(2, 20))
        for slot in live.slots:
            slot.fill_(torch.nan)
        store.flush()
        assert same_bits(_block(store, _key(1)), kv_block(2 * TOKENS).part(2, 20))

    def test_a_view_does_not_pin_what_it_was_cut_from(self) -> None:
        store = self.make_for(10)
        store.put(_key(1), kv_block(400).part(2, 26))
        store.flush()
        assert _block(store, _key(1)).owned

    def test_an_entry_put_twice_counts_once(self) -> None:
        store = self.make_for(10)
        store.put(_key(1), kv_block(TOKENS, seed=1))
        store.flush()
        before = store.nbytes
        store.put(_key(1), kv_block(TOKENS, seed=2))
        store.flush()
        assert store.nbytes == before
        assert same_bits(_block(store, _key(1)), kv_block(TOKENS, seed=2))

    def test_the_budget_is_never_exceeded(self) -> None:
        draw, store = random.Random(0), self.make_for(5)
        budget = store.stats().budget
        for seed in range(60):
            store.put(_key(draw.randrange(12)), kv_block(draw.randrange(1, 3 * TOKENS), seed))
            assert store.nbytes <= budget
            store.flush()
            assert store.nbytes == _listed(store) <= budget

    def test_the_least_recently_used_leaves_first(self) -> None:
        store = self.make_for(3)
        for name in (1, 2, 3):
            store.put(_key(name), kv_block(TOKENS, name))
        store.flush()
        store.get(_key(1))
        assert tuple(store.keys()) == (_key(2), _key(3), _key(1))
        store.put(_key(4), kv_block(TOKENS))
        store.flush()
        assert tuple(store.keys()) == (_key(3), _key(1), _key(4))
        assert store.stats().evicted == 1

    def test_what_can_never_fit_changes_nothing(self) -> None:
        store = self.make_for(2)
        for name in (1, 2):
            store.put(_key(name), kv_block(TOKENS, name))
        store.flush()
        before = store.nbytes
        assert not store.put(_key(3), kv_block(5 * TOKENS))
        store.flush()
        assert tuple(store.keys()) == (_key(1), _key(2))
        assert (store.nbytes, store.stats().refused["budget"]) == (before, 1)
        assert store.get(_key(3)) is None

    def test_a_dropped_entry_is_gone_with_its_bytes(self) -> None:
        store = self.make_for(2)
        store.put(_key(1), kv_block(TOKENS))
        store.flush()
        assert store.drop(_key(1))
        assert not store.drop(_key(1))
        assert (store.get(_key(1)), store.nbytes, tuple(store.keys())) == (None, 0, ())

    def test_what_is_held_for_a_chunk_comes_with_its_notes(self) -> None:
        store = self.make_for(10)
        note = Note(0.5, Context(chunks=Lineage.of(("x", "y")), tokens=7))
        store.put(Key("conditioned", "a", "c"), kv_block(TOKENS), note)
        store.put(Key("canonical", "a"), kv_block(TOKENS))
        store.put(Key("canonical", "b"), kv_block(TOKENS))
        store.flush()
        assert _notes(store, "a") == {Key("conditioned", "a", "c"): note, Key("canonical", "a"): Note()}
        assert _notes(store, "b", "z") == {Key("canonical", "b"): Note()}
        found = store.get(Key("conditioned", "a", "c"))
        assert found is not None
        assert found.note == note
        store.put(Key("conditioned", "a", "c"), kv_block(TOKENS))
        store.drop(Key("canonical", "a"))
        store.flush()
        assert _notes(store, "a") == {Key("conditioned", "a", "c"): Note()}

    def test_many_chunks_are_asked_for_at_once(self) -> None:
        store = self.make_for(10)
        store.put(Key("canonical", "c1500"), kv_block(TOKENS))
        store.flush()
        assert set(store.held([f"c{i}" for i in range(2000)])) == {Key("canonical", "c1500")}
        assert store.held([]) == {}

    def test_looking_is_no_use(self) -> None:
        store = self.make_for(2)
        for name in (1, 2):
            store.put(_key(name), kv_block(TOKENS))
        store.flush()
        store.held([_key(1).chunk])
        store.put(_key(3), kv_block(TOKENS))
        store.flush()
        assert not store.held([_key(1).chunk])
        assert tuple(store.keys()) == (_key(2), _key(3))

    def test_a_tenant_that_floods_pushes_itself_out(self) -> None:
        store = self.make_for(8)
        ann, bob = TenantStore(store, "ann"), TenantStore(store, "bob")
        for name in range(3):
            ann.put(_key(name), kv_block(TOKENS))
        store.flush()
        for name in range(30):
            bob.put(_key(name), kv_block(TOKENS))
            store.flush()
        assert len(ann.keys()) == 3
        assert bob.get(_key(0)) is None
        assert store.nbytes <= store.stats().budget

    def test_threads_may_fight_over_it(self) -> None:
        """Entries are whole, the books right and the budget kept, whoever comes first."""
        store, torn = self.make_for(6), list[Key]()
        budget = store.stats().budget

        def fight(seed: int) -> None:
            draw = random.Random(seed)
            for _ in range(60):
                name = draw.randrange(9)
                match draw.randrange(3):
                    case 0:
                        store.put(_key(name), kv_block(TOKENS, name))
                    case 1:
                        found = store.get(_key(name))
                        if found and not same_bits(_kv(found), kv_block(TOKENS, name)):
                            torn.append(_key(name))
                    case _:
                        store.drop(_key(name))
                if store.nbytes > budget:
                    torn.append(_key(-1))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(fight, range(8)))
        assert not torn
        store.flush()
        assert store.nbytes == _listed(store)

    def test_closing_twice_is_fine(self) -> None:
        store = self.make_for(1)
        store.put(_key(1), kv_block(TOKENS))
        store.close()
        store.close()


def _key(name: int) -> Key:
    return Key("conditioned", f"chunk{name}", "context")


def _block(store: Store, key: Key) -> KVBlock:
    return _kv(store.get(key))


def _kv(stored: Stored | None) -> KVBlock:
    assert stored is not None
    assert isinstance(stored.entry, KVBlock)
    return stored.entry


def _notes(store: Store, *chunks: str) -> dict[Key, Note]:
    return {key: found.note for key, found in store.held(chunks).items()}


def _listed(store: Store) -> int:
    """Bytes of all entries as they are listed."""
    return sum(found.nbytes for found in store.held({key.chunk for key in store.keys()}).values())  # noqa: SIM118


def _patch() -> Patch:
    left, right = torch.randn(6, 3).bfloat16(), torch.randn(3, 8)
    factors = Factors(left, right, torch.tensor([0, 1, 1, 3], dtype=torch.int32))
    return Patch((None, factors), "removal", 0.75, position=9)


def _media() -> Media:
    shown = torch.tensor([False, True, True, True, False])
    features = Features(torch.randn(3, 4), (torch.randn(3, 4),), listed=True)
    return Media("image", b"\xff" * 32, torch.arange(15).view(3, 5), 4, shown, features, ((1, 4),))


def _same(found: Stored | None, wanted: Patch | Media) -> bool:
    """Equal in type, in every tensor and in everything else."""
    return found is not None and type(found.entry) is type(wanted) and _flat(found.entry) == _flat(wanted)


def _flat(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return (value.dtype, tuple(value.shape), value.tolist())
    if isinstance(value, tuple):
        return tuple(_flat(part) for part in value)
    return {name: _flat(part) for name, part in vars(value).items()} if hasattr(value, "__dict__") else value
