"""Several stores as one: what goes where, what comes back nearer, and what if one cannot keep up."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from agentkv_orchestrator.cost import CostTable
from agentkv_orchestrator.residency import Held
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkv.errors import InvalidInput
from agentkv.kv import KVBlock
from agentkv.store.base import PLAIN, Entry, Key, Note, Origin, Stored
from agentkv.store.disk import DiskStore
from agentkv.store.memory import MemoryStore
from agentkv.store.tiers import Mode, TieredStore
from agentkv.testing import kv_block, recording_engine, same_bits

UNIT = kv_block(24).nbytes
MODES: list[Mode] = ["write_through", "write_back"]


def key(name: int) -> Key:
    return Key("conditioned", f"chunk{name}", "context")


class Gated(MemoryStore):
    """A slow store: writes wait until the gate is open, or fail as a broken one does."""

    def __init__(self, budget: int = 1 << 24) -> None:
        super().__init__(budget, tier="disk")
        self.gate, self.broken, self.reads = threading.Event(), False, 0
        self.gate.set()

    def put(self, key: Key, entry: Entry, note: Note = PLAIN, origin: Origin | None = None) -> bool:
        self.gate.wait(10)
        if self.broken:
            raise RuntimeError("a store that breaks its promise")
        return super().put(key, entry, note, origin)

    def get(self, key: Key, rows: KVBlock | None = None) -> Stored | None:
        self.reads += 1
        return super().get(key, rows)


@pytest.fixture(params=MODES)
def tiers(request: pytest.FixtureRequest) -> Iterator[TieredStore]:
    """Room for three blocks in front of a store with room for all."""
    store = TieredStore(MemoryStore(int(3.5 * UNIT)), Gated(), mode=request.param)
    yield store
    store.close()


def far(store: TieredStore) -> Gated:
    (other,) = store.others
    assert isinstance(other, Gated)
    return other


def right(found: Stored | None, seed: int) -> bool:
    return found is not None and same_bits(found.entry, kv_block(24, seed))  # type: ignore[arg-type]


def test_what_the_nearest_has_no_room_for_is_still_there(tiers: TieredStore) -> None:
    for name in range(8):
        tiers.put(key(name), kv_block(24, name))
    assert all(right(tiers.get(key(name)), name) for name in range(8))
    assert tiers.nearest.nbytes <= tiers.nearest.budget
    tiers.flush()
    assert set(far(tiers).keys()) == {key(name) for name in range(8)}
    assert set(tiers.keys()) == {key(name) for name in range(8)}


def test_write_back_writes_only_what_leaves() -> None:
    store = TieredStore(MemoryStore(int(3.5 * UNIT)), Gated(), mode="write_back")
    for name in range(5):
        store.put(key(name), kv_block(24, name))
    store._queue.drain()
    assert set(far(store).keys()) == {key(0), key(1)}
    store.close()
    assert len(far(store).keys()) == 5


def test_what_is_found_further_away_comes_nearer(tiers: TieredStore) -> None:
    for name in range(5):
        tiers.put(key(name), kv_block(24, name), Note(0.5))
    tiers.flush()
    assert tiers.held(["chunk0"])[key(0)].tier == "disk"
    tiers.get(key(0))
    assert tiers.held(["chunk0"])[key(0)] == (Note(0.5), UNIT, "host")
    reads = far(tiers).reads
    tiers.get(key(0))
    assert far(tiers).reads == reads


def test_a_put_never_waits_for_a_slow_store(tiers: TieredStore) -> None:
    far(tiers).gate.clear()
    for name in range(6):
        tiers.put(key(name), kv_block(24, name))
    assert all(right(tiers.get(key(name)), name) for name in range(6))  # three of them wait to be written
    assert set(tiers.held([f"chunk{name}" for name in range(6)])) == {key(name) for name in range(6)}
    assert tiers.stats().waiting > 0
    far(tiers).gate.set()
    tiers.flush()
    assert tiers.stats().waiting == 0
    assert all(right(far(tiers).get(key(name)), name) for name in range(6))


@pytest.mark.parametrize("mode", MODES)
def test_a_full_queue_drops_the_write_and_counts_it(mode: Mode) -> None:
    store = TieredStore(MemoryStore(int(2.5 * UNIT)), Gated(), mode=mode, queue_bytes=2 * UNIT)
    far(store).gate.clear()
    for name in range(9):
        store.put(key(name), kv_block(24, name))
        assert store.stats().waiting <= 2 * UNIT
    lost = [name for name in range(9) if store.get(key(name)) is None]
    assert lost
    assert store.stats().refused["queue"] >= len(lost)
    assert all(key(name) not in store.held([f"chunk{name}"]) for name in lost)
    far(store).gate.set()
    store.close()
    assert len(far(store).keys()) + len(lost) == 9


def test_a_newer_entry_is_not_overtaken_by_an_older_one(tiers: TieredStore) -> None:
    far(tiers).gate.clear()
    for seed in range(4):
        tiers.put(key(0), kv_block(24, seed))
    for name in range(1, 5):
        tiers.put(key(name), kv_block(24, name))
    assert right(tiers.get(key(0)), 3)
    far(tiers).gate.set()
    tiers.flush()
    assert right(far(tiers).get(key(0)), 3)


def test_what_is_dropped_stays_gone_though_its_write_was_on_its_way(tiers: TieredStore) -> None:
    far(tiers).gate.clear()
    for name in range(5):
        tiers.put(key(name), kv_block(24, name))
    assert tiers.drop(key(0))
    assert not tiers.drop(key(0))
    assert (tiers.get(key(0)), dict(tiers.held(["chunk0"]))) == (None, {})
    far(tiers).gate.set()
    tiers.flush()
    assert far(tiers).get(key(0)) is None
    assert key(0) not in tiers.keys()  # noqa: SIM118


def test_prefetch_brings_entries_nearer_and_a_get_waits_for_them(tiers: TieredStore) -> None:
    for name in range(6):
        tiers.put(key(name), kv_block(24, name))
    tiers.flush()
    reads = far(tiers).reads
    wanted = [key(0), key(1), key(5), key(99)]  # one is near already, one is nowhere
    assert tiers.prefetch(wanted) == 3
    assert all(right(tiers.get(key(name)), name) for name in (0, 1))
    assert tiers.get(key(99)) is None
    assert far(tiers).reads <= reads + 4


def test_a_store_that_raises_stops_nothing(tiers: TieredStore) -> None:
    far(tiers).broken = True
    for name in range(5):
        tiers.put(key(name), kv_block(24, name))
    tiers._queue.drain()
    assert tiers.stats().refused["io"] >= 2
    far(tiers).broken = False
    tiers.put(key(7), kv_block(24, 7))
    tiers.flush()
    assert right(far(tiers).get(key(7)), 7)


def test_nothing_is_lost_between_two_sessions(tmp_path: Path) -> None:
    for mode in MODES:
        store = TieredStore(MemoryStore(2 * UNIT), DiskStore(tmp_path / mode), mode=mode)
        for name in range(5):
            store.put(key(name), kv_block(24, name), Note(0.1))
        store.close()
        again = TieredStore(MemoryStore(2 * UNIT), DiskStore(tmp_path / mode))
        assert all(right(again.get(key(name)), name) for name in range(5))
        assert again.stats().below[1].hits == 5
        again.close()


def test_three_in_a_row(tmp_path: Path) -> None:
    disk = DiskStore(tmp_path / "s")
    host = TieredStore(MemoryStore(int(4.5 * UNIT), device="cpu"), disk, mode="write_back")
    store = TieredStore(MemoryStore(int(2.5 * UNIT), tier="device"), host, mode="write_back")
    for name in range(9):
        store.put(key(name), kv_block(24, name))
    assert store.held(["chunk8"])[key(8)].tier == "device"
    assert all(right(store.get(key(name)), name) for name in range(9))
    store.close()
    assert len(DiskStore(tmp_path / "s").keys()) == 9


def test_one_store_is_no_tiers() -> None:
    with pytest.raises(InvalidInput, match="use the one"):
        TieredStore(MemoryStore())


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["put", "get", "drop", "flush", "prefetch"]), st.integers(0, 5)), max_size=40
)


@settings(max_examples=80, deadline=None)
@given(ACTIONS, st.sampled_from(MODES))
def test_it_behaves_like_one_large_store(actions: list[tuple[str, int]], mode: Mode) -> None:
    store, model = TieredStore(MemoryStore(int(2.5 * UNIT)), Gated(), mode=mode), dict[int, int]()
    for seed, (action, name) in enumerate(actions):
        match action:
            case "put":
                store.put(key(name), kv_block(24, seed))
                model[name] = seed
            case "get":
                found = store.get(key(name))
                assert right(found, model[name]) if name in model else found is None
            case "drop":
                assert store.drop(key(name)) == (model.pop(name, None) is not None)
            case "flush":
                store.flush()
            case _:
                store.prefetch([key(name)])
        assert set(store.held([f"chunk{name}" for name in range(6)])) == {key(name) for name in model}
    store.close()
    assert {k: right(far(store).get(k), model[int(k.chunk[5:])]) for k in far(store).keys()} == {  # noqa: SIM118
        key(name): True for name in model
    }


@pytest.mark.parametrize("mode", MODES)
def test_threads_may_fight_over_tiers(mode: Mode) -> None:
    store, torn = TieredStore(MemoryStore(int(3.5 * UNIT)), Gated(), mode=mode), list[int]()

    def fight(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(150):
            name = draw.randrange(9)
            match draw.randrange(4):
                case 0:
                    store.put(key(name), kv_block(24, name))
                case 1:
                    found = store.get(key(name))
                    if found is not None and not right(found, name):
                        torn.append(name)
                case 2:
                    store.prefetch([key(name)])
                case _:
                    store.drop(key(name))

    threads = [threading.Thread(target=fight, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    assert not torn
    assert all(right(far(store).get(k), int(k.chunk[5:])) for k in far(store).keys())  # noqa: SIM118


@pytest.mark.parametrize(("ms", "op"), [(0.0, "load"), (1e9, "prefill")])
def test_a_plan_knows_what_it_takes_to_fetch_from_a_tier(ms: float, op: str) -> None:
    shipped = CostTable.shipped()
    costs = shipped.model_copy(update={"fetch_ms_per_mib": {"disk": ms}})
    assert costs.fetch_ms(Held("disk", 3 << 20)) == 3 * ms
    assert costs.fetch_ms(Held("host", 3 << 20)) == costs.fetch_ms(None) == 0
    with recording_engine(store=MemoryStore(tier="disk")) as engine:
        engine.costs = costs
        window = engine.window()
        window.append("w3 " * 40)
        note = window.append("w4 " * 200)
        window.commit()
        window.evict(note)
        window.commit()
        window.recall(note)
        assert op in {step.op for step in window.commit().ops}
