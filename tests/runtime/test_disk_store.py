"""The store on a disk: restarts, damage, other processes, and folders that are no store."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkv.errors import BadStore
from agentkv.kv import KVBlock
from agentkv.store.base import Key, Note
from agentkv.store.disk import DiskStore
from agentkv.store.memory import MemoryStore
from agentkv.store.tenancy import TenantStore
from agentkv.store.tiers import TieredStore
from agentkv.testing import Fault, FaultyFiles, kv_block, matrix, same_bits

BUDGET = 1 << 20


def key(name: int) -> Key:
    return Key("conditioned", f"chunk{name}", "context")


def right(store: DiskStore, name: int, seed: int) -> bool:
    found = store.get(key(name))
    return found is not None and same_bits(found.entry, kv_block(24, seed))  # type: ignore[arg-type]


def filled(folder: Path, count: int = 4) -> DiskStore:
    store = DiskStore(folder, BUDGET)
    for name in range(count):
        store.put(key(name), kv_block(24, name), Note(0.1 * name))
    return store


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    with_order = filled(tmp_path / "s")
    with_order.get(key(0))
    with_order.close()
    store = DiskStore(tmp_path / "s", BUDGET)
    assert store.keys() == tuple(key(name) for name in (1, 2, 3, 0))
    assert all(right(store, name, name) for name in range(4))
    assert store.held(["chunk3"])[key(3)].note == Note(0.1 * 3)


def test_a_smaller_budget_is_kept_after_a_restart(tmp_path: Path) -> None:
    store = filled(tmp_path / "s")
    size = store.nbytes
    store.close()
    small = DiskStore(tmp_path / "s", size // 2)
    small.put(key(9), kv_block(24, 9))
    assert small.nbytes <= size // 2
    assert sum(path.stat().st_size for path in small.folder.blobs()) == small.nbytes


def damage_nothing(index: Path) -> None:
    pass


def lose(index: Path) -> None:
    for path in index.parent.glob("index.db*"):
        path.unlink()


def overwrite(index: Path) -> None:
    index.write_bytes(os.urandom(5000))


def cut(index: Path) -> None:
    os.truncate(index, index.stat().st_size // 2)


def empty(index: Path) -> None:
    for path in index.parent.glob("index.db*"):
        path.write_bytes(b"")


def of_the_future(index: Path) -> None:
    with sqlite3.connect(index) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()


DAMAGES = [lose, overwrite, cut, empty, of_the_future]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("running", [True, False])
def test_an_index_that_is_damaged_is_made_anew(
    tmp_path: Path, damage: Callable[[Path], None], running: bool
) -> None:
    """While the store is open, or in between."""
    store = filled(tmp_path / "s")
    if not running:
        store.close()
    damage(tmp_path / "s" / "index.db")
    if not running:
        store = DiskStore(tmp_path / "s", BUDGET)
    assert all(right(store, name, name) for name in range(4))
    store.put(key(7), kv_block(24, 7))
    store.close()
    again = DiskStore(tmp_path / "s", BUDGET)
    assert set(again.keys()) == {key(name) for name in (0, 1, 2, 3, 7)}
    assert again.held(["chunk3"])[key(3)].note == Note(0.1 * 3)
    assert again.nbytes == sum(path.stat().st_size for path in again.folder.blobs())


def test_a_block_is_read_straight_into_the_rows_that_are_given(tmp_path: Path) -> None:
    """Also from behind a nearer store, which then does not take it in."""
    disk, rows = filled(tmp_path / "s", 2), kv_block(24, 99)
    tiers = TieredStore(MemoryStore(1 << 20), disk)
    for store in (disk, tiers, TenantStore(tiers, "")):
        for slot in rows.slots:
            slot.fill_(0)
        found = store.get(key(1), rows)
        assert found is not None
        assert isinstance(found.entry, KVBlock)
        assert all(a.data_ptr() == b.data_ptr() for a, b in zip(found.entry.slots, rows.slots, strict=True))
        assert same_bits(found.entry, kv_block(24, 1))
        assert len(tiers.nearest.keys()) == 0
    path = disk.folder.blob(key(0))
    whole = bytearray(path.read_bytes())
    whole[-100] ^= 1
    path.write_bytes(whole)
    assert tiers.get(key(0), rows) is None
    tiers.close()


def test_more_buffers_than_the_system_fills_at_once_are_filled(tmp_path: Path) -> None:
    store, block = DiskStore(tmp_path / "s"), kv_block(2, 1, layers=1500)
    store.put(key(0), block)
    rows = kv_block(2, 2, layers=1500)
    assert store.get(key(0), rows) is not None
    assert torch.equal(rows.slots[1], block.slots[1])


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_blobs_with_flipped_or_missing_bytes_are_misses(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    store = filled(tmp_path_factory.mktemp("d") / "s", 2)
    path = store.folder.blob(key(0))
    whole = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        bit = data.draw(st.integers(0, 8 * len(whole) - 1))
        whole[bit // 8] ^= 1 << bit % 8
    else:
        del whole[data.draw(st.integers(0, len(whole) - 1)) :]
    path.write_bytes(whole)
    assert store.get(key(0)) is None
    assert key(0) not in store.held(["chunk0"])
    assert sum(store.stats().misses.values()) == 1
    assert right(store, 1, 1)
    assert store.stats().misses["version"] or (store.keys() == (key(1),) and not path.exists())
    store.put(key(0), kv_block(24, 5))
    assert right(store, 0, 5)


def test_a_blob_under_the_name_of_another_is_no_entry(tmp_path: Path) -> None:
    store = filled(tmp_path / "s", 2)
    store.folder.blob(key(0)).write_bytes(store.folder.blob(key(1)).read_bytes())
    assert store.get(key(0)) is None
    assert store.stats().misses["foreign"] == 1
    assert right(store, 1, 1)


def test_a_link_out_of_the_store_is_not_followed(tmp_path: Path) -> None:
    store = filled(tmp_path / "s", 2)
    outside = tmp_path / "outside"
    path = store.folder.blob(key(0))
    path.rename(outside)
    path.symlink_to(outside)
    assert store.get(key(0)) is None
    assert store.stats().misses["io"] == 1
    store.put(key(0), kv_block(24, 5))
    assert right(store, 0, 5)
    assert outside.exists()


def test_a_file_cut_short_while_it_is_read_kills_nobody(tmp_path: Path) -> None:
    """Someone else may truncate a file at any time: with a mapping this would be SIGBUS."""
    store = filled(tmp_path / "s", 1)
    path = store.folder.blob(key(0))

    class Cutting(FaultyFiles):
        def read(self, file: int, at: int, buffers: object) -> int:
            if at:
                os.truncate(path, 100)
            return super().read(file, at, buffers)  # type: ignore[arg-type]

    store.files = Cutting()
    assert store.get(key(0)) is None
    assert store.stats().misses["torn"] == 1


def test_what_was_got_does_not_change_with_the_file(tmp_path: Path) -> None:
    store = filled(tmp_path / "s", 1)
    found = store.get(key(0))
    store.folder.blob(key(0)).write_bytes(b"\xff" * 9000)
    store.put(key(0), kv_block(24, 8))
    assert found is not None
    assert isinstance(found.entry, KVBlock)
    assert same_bits(found.entry, kv_block(24, 0))


def test_another_process_that_holds_the_index_costs_no_more_than_patience(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "s", BUDGET, patience=0.1)
    store.put(key(0), kv_block(24, 0))
    blocker = sqlite3.connect(tmp_path / "s" / "index.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    since = time.monotonic()
    assert not store.put(key(1), kv_block(24, 1))
    assert not store.drop(key(7))
    assert right(store, 0, 0)
    assert key(0) in store.held(["chunk0"])
    assert time.monotonic() - since < 3
    assert store.stats().refused == {"timeout": 1}
    blocker.execute("ROLLBACK")
    blocker.close()
    assert store.put(key(1), kv_block(24, 1))


def test_a_full_disk_refuses_and_keeps_what_it_has(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = DiskStore(tmp_path / "s", BUDGET, files=files)
    store.put(key(0), kv_block(24, 0))
    files.fault, files.steps = Fault("full", 0, more=True), 0
    assert not store.put(key(1), kv_block(24, 1))
    assert not store.put(key(0), kv_block(24, 9))
    assert store.stats().refused == {"full": 2}
    files.fault = None
    assert right(store, 0, 0)
    assert DiskStore(tmp_path / "s", BUDGET).folder.sweep() == 0


def test_clocks_that_jump_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, now in enumerate((2e9, 0.0, -5.0, 4e9)):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        store = DiskStore(tmp_path / "s", BUDGET)
        store.put(key(name), kv_block(24, name))
        store.close()
    assert DiskStore(tmp_path / "s", BUDGET).keys() == tuple(key(name) for name in range(4))


def _hammer(folder: Path, seed: int, rounds: int) -> None:
    """Works on a store for a while; the numbers of an entry follow from its name."""
    store, draw = DiskStore(folder, 60_000), random.Random(seed)
    for _ in range(rounds):
        name = draw.randrange(12)
        match draw.randrange(4):
            case 0 | 1:
                store.put(key(name), kv_block(24, name))
            case 2:
                found = store.get(key(name))
                if found and not same_bits(found.entry, kv_block(24, name)):  # type: ignore[arg-type]
                    os._exit(3)
            case _:
                store.drop(key(name))
        if store.nbytes > 60_000:
            os._exit(4)
    store.close()
    os._exit(0)


def test_processes_may_share_a_folder(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    DiskStore(tmp_path / "s", 60_000).close()
    workers = [fork.Process(target=_hammer, args=(tmp_path / "s", seed, 80)) for seed in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    store = DiskStore(tmp_path / "s", 60_000)
    assert all(right(store, int(k.chunk[5:]), int(k.chunk[5:])) for k in store.keys())  # noqa: SIM118
    assert store.nbytes == sum(path.stat().st_size for path in store.folder.blobs())


def test_a_process_killed_at_any_moment_leaves_whole_entries(tmp_path: Path) -> None:
    fork, draw = multiprocessing.get_context("fork"), random.Random(0)
    for turn in range(12):
        worker = fork.Process(target=_hammer, args=(tmp_path / "s", turn, 10_000))
        worker.start()
        time.sleep(0.05 + 0.1 * draw.random())
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        store = DiskStore(tmp_path / "s", 60_000)
        for name in range(12):
            found = store.get(key(name))
            assert found is None or right(store, name, name)
        misses = store.stats().misses
        assert {"torn", "checksum", "foreign"}.isdisjoint(misses)
        assert store.nbytes <= 60_000
        store.close()


def test_some_of_the_fault_matrix(tmp_path: Path) -> None:
    """All of it: python -m agentkv.testing.matrix, which .ci/run runs."""
    every = list(matrix.faults(tmp_path / "counted"))
    assert len(every) > 1000
    for number, fault in enumerate(every[::37]):
        assert matrix.strike(tmp_path / str(number), fault) == [], fault


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(BadStore, match="no store"):
        DiskStore(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(BadStore, match="cannot be used"):
        DiskStore(tmp_path / "thesis.txt")


def test_another_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    store = filled(tmp_path / "s")
    store.close()
    marker = tmp_path / "s" / "agentkv-store.json"
    for text, match in (('{"format": 2}', "format 2"), ("{", "cannot be read")):
        marker.write_text(text)
        with pytest.raises(BadStore, match=match):
            DiskStore(tmp_path / "s")
        assert marker.read_text() == text
    marker.write_text('{"format": 1}')
    assert right(DiskStore(tmp_path / "s", BUDGET), 0, 0)


def test_a_folder_that_may_not_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "s").close()
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    with pytest.raises(BadStore, match="permission"):
        DiskStore(tmp_path / "s")


def test_files_are_the_users_alone(tmp_path: Path) -> None:
    store = filled(tmp_path / "s", 1)
    modes = {path.stat().st_mode & 0o077 for path in (store.folder.root, store.folder.blob(key(0)))}
    assert modes == {0}
