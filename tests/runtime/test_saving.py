"""Windows that outlive their process."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from agentkv_orchestrator.policy import Policy
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkv import Engine, Window
from agentkv.errors import BadStore, FingerprintMismatch, InvalidInput, NothingStored
from agentkv.saving import SavedWindow
from agentkv.store.base import Document, Key
from agentkv.store.disk import DiskStore
from agentkv.store.memory import MemoryStore
from agentkv.store.tiers import TieredStore
from agentkv.testing import recording_engine, rows, same_bits
from tests.runtime.cases import STRICT, assert_exact, engine, live, words
from tests.runtime.script import EDITS, Edit, Script, scripts


def edited(built: Engine) -> Window:
    """A window with a past: a hole, a move, a message that is evicted, one that is pinned."""
    window = built.window(Policy(name="balanced", kl_budget=0.3))
    window.append(words(20, 1), kind="system", pin=True)
    handles = [window.append(words(30, 2 + i), kind="note") for i in range(4)]
    window.commit()
    window.evict(handles[1])
    window.move(handles[3], before=handles[2])
    window.commit()
    return window


def bits(window: Window) -> str:
    """A digest of the live rows."""
    block = live(window)
    return hashlib.sha256(b"".join(s.numpy().tobytes() for s in (*block.slots, block.positions))).hexdigest()


def damage(path: Path) -> None:
    """Turn a bit of the tensors."""
    whole = bytearray(path.read_bytes())
    whole[-1000] ^= 1
    path.write_bytes(whole)


def state(window: Window) -> list[tuple[object, ...]]:
    return [(p.exact, p.verbatim, p.row, p.position, p.revision) for p in window.graph.placements]


def test_an_opened_window_is_the_saved_one_to_the_bit(tmp_path: Path) -> None:
    with engine(chat=True, store=DiskStore(tmp_path / "s")) as built:
        window = edited(built)
        name = window.save()
        before = live(window)
        placed = state(window)
        text, revision = window.ids().tolist(), window.graph.revision
        assert window.last_plan is not None
        reasons = [op.reason for op in window.last_plan.ops]
        generated = window.generate("w20 w21", max_new_tokens=4)
    with engine(chat=True, store=DiskStore(tmp_path / "s")) as built:
        opened = built.open(name)
        assert same_bits(live(opened), before)
        assert opened.ids().tolist() == text
        assert state(opened) == placed
        assert (opened.graph.revision, opened.policy.kl_budget) == (revision, 0.3)
        assert opened.explain()
        assert opened.last_plan is not None
        assert [op.reason for op in opened.last_plan.ops] == reasons
        assert opened.commit().tokens()["recomputed"] == 0
        assert opened.generate("w20 w21", max_new_tokens=4) == generated
        pinned, *_ = (e for e in opened.content.live() if e.pinned)
        assert pinned.handle.kind == "system"
        gone, *_ = (e.handle for _, e in opened.content.entries if e.handle.id not in opened.content.order)
        opened.recall(gone)
        opened.commit()


def test_it_is_opened_in_another_process(tmp_path: Path) -> None:
    code = (
        "import sys, torch; torch.set_num_threads(1)\n"
        "from tests.runtime.test_saving import bits, edited, engine, DiskStore\n"
        "with engine(chat=True, store=DiskStore(sys.argv[1])) as built:\n"
        "    window = edited(built)\n"
        "    window.save('mine')\n"
        "    print(bits(window), end='')"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "s")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    with engine(chat=True, store=DiskStore(tmp_path / "s")) as built:
        opened = built.open("mine")
        assert bits(opened) == done.stdout
        assert opened.commit().tokens()["recomputed"] == 0
        assert bits(opened) == done.stdout


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("lost", [0, 1, 2, 3, None])
def test_rows_that_are_lost_are_computed(tmp_path: Path, lost: int | None, flipped: bool) -> None:
    """lost: which chunk's rows; None for all of them. flipped: they are there, with other bits."""
    store = DiskStore(tmp_path / "s")
    with engine(chat=True, store=store) as built:
        window = built.window("exact")
        for i in range(4):
            window.append(words(30, i))
        window.commit()
        name = window.save()
        chunks = [p.chunk.id for p in window.graph.placements]
    for key in store.keys():  # noqa: SIM118
        if key.kind == "rows" and (lost is None or key.chunk == chunks[lost]):
            damage(store.folder.blob(key)) if flipped else store.drop(key)
    with engine(chat=True, store=DiskStore(tmp_path / "s")) as built:
        opened = built.open(name)
        whole = len(opened)
        plan = opened.commit()
        assert plan.tokens()["recomputed"] > 0
        assert len(opened) == opened.graph.tokens == whole
        assert_exact(opened)
        assert opened.commit().tokens()["recomputed"] == 0


@settings(max_examples=40, deadline=None)
@given(script=scripts((*EDITS, "clean", "drop"), most=12), lose=st.booleans())
def test_any_window_is_opened_as_it_was(script: list[Edit], lose: bool) -> None:
    store = MemoryStore()
    with recording_engine(store=store) as built:
        player = Script(built.window())
        for edit in script:
            player.one(edit)
        player.window.commit()
        name, text, shown = player.window.save(), player.text, rows(player.window.kv)
    for number, key in enumerate(store.keys()):
        if lose and key.kind == "rows" and number % 2:
            store.drop(key)
    with recording_engine(store=store) as built:
        built.numbers(7)
        opened = built.open(name)
        if not lose:
            assert rows(opened.kv) == shown
        opened.commit()
        assert rows(opened.kv) == built.tokenizer(text)["input_ids"]
        assert opened.graph.tokens == len(shown)


def test_equal_rows_are_kept_once_and_windows_are_not_pushed_out() -> None:
    store = MemoryStore()
    with recording_engine(store=store) as built:
        window = built.window()
        window.append(words(50, 1))
        window.save("a")
        kept = [key for key in store.keys() if key.kind == "rows"]  # noqa: SIM118
        window.fork().save("b")
        assert kept == [key for key in store.keys() if key.kind == "rows"]  # noqa: SIM118
        for name in "ab":
            assert rows(built.open(name).kv) == rows(window.kv)
    small = MemoryStore(9_000)
    with recording_engine(store=small) as built:
        window = built.window()
        window.append(words(10, 1))
        window.save("a")
        for seed in range(200):
            window.append(words(10, seed + 2))
            window.slide(60)
            window.commit()
        assert small.stats().evicted > 0
        assert built.open("a").commit().tokens()["recomputed"] in (0, 10)


def test_saving_again_under_a_name_replaces() -> None:
    with recording_engine() as built:
        window = built.window()
        window.append(words(10, 1))
        assert window.save("mine") == "mine"
        window.append(words(10, 2))
        window.save("mine")
        assert len(built.open("mine")) == 20
        with pytest.raises(InvalidInput, match="empty name"):
            window.save("")


def test_numbers_are_fresh_where_it_is_opened() -> None:
    store = MemoryStore()
    with recording_engine(store=store) as built:
        window = built.window()
        window.append(words(10, 1))
        window.save("mine")
    with recording_engine(store=store) as built:
        other = built.window()
        theirs = other.append(words(10, 2))
        a, b = built.open("mine"), built.open("mine")
        ids = [e.handle.id for w in (a, b) for e in w.content.live()]
        assert len({theirs.id, *ids}) == 3
        a.evict(a.content.live()[0].handle)
        a.commit()
        assert (len(a), len(b)) == (0, 10)


def test_what_cannot_be_opened_is_told(tmp_path: Path) -> None:
    store = MemoryStore()
    with engine("llama", store=store, tenant="ann") as built:
        window = built.window()
        window.append(words(10, 1))
        window.save("mine")
        with pytest.raises(NothingStored, match="no window 'other'"):
            built.open("other")
    with engine("llama", store=store, tenant="bob") as built, pytest.raises(NothingStored):
        built.open("mine")
    with engine("qwen3", store=store, tenant="ann") as built, pytest.raises(FingerprintMismatch):
        built.open("mine")


def test_a_window_that_does_not_fit_into_the_store_is_told() -> None:
    with recording_engine(store=MemoryStore(100)) as built:
        window = built.window()
        window.append(words(10, 1))
        with pytest.raises(BadStore, match="did not keep"):
            window.save()
        assert len(window) == 10


def bent(told: dict[str, Any], how: int) -> dict[str, Any]:
    """A document with one thing in it that cannot be."""
    match how:
        case 0:
            told["order"] = [999]
        case 1:
            told["chunks"][0]["ids"][0] += 1
        case 2:
            told["chunks"] = []
        case 3:
            told["rows"] = {}
        case 4:
            told["start"] = 7
        case 5:
            told["graph"]["placements"][0]["row"] = -5
        case 6:
            told["fingerprint"] = 7
        case 7:
            told["more"] = 1
        case 8:
            told["start"] = told["graph"]["placements"][0]["row"] = 10**12
        case 9:
            told["graph"]["placements"][0]["chunk"] |= {"length": 10**12, "span": 10**12}
        case 10:
            told["chunks"][0]["ids"][0] = 10**30
        case _:
            told["chunks"][0]["ids"] = []
    return told


@pytest.mark.parametrize("how", range(12))
def test_a_document_that_contradicts_itself_is_refused(how: int) -> None:
    store = MemoryStore()
    with recording_engine(store=store) as built:
        window = built.window()
        window.append(words(10, 1))
        window.save("mine")
        found = store.get(Key("window", "mine"))
        assert found is not None
        assert isinstance(found.entry, Document)
        SavedWindow.model_validate_json(found.entry.text)
        text = json.dumps(bent(json.loads(found.entry.text), how)).encode()
        store.put(Key("window", "mine"), Document(text))
        before = len(built._windows)
        with pytest.raises(BadStore, match="contradicts itself"):
            built.open("mine")
        assert len(built._windows) == before


def test_a_window_of_another_format_is_refused_and_stays() -> None:
    store = MemoryStore()
    with recording_engine(store=store) as built:
        window = built.window()
        window.append(words(10, 1))
        window.save("mine")
        key = Key("window", "mine")
        found = store.get(key)
        assert found is not None
        assert isinstance(found.entry, Document)
        told = json.loads(found.entry.text) | {"format": 2, "what is new": []}
        store.put(key, Document(json.dumps(told).encode()))
        with pytest.raises(BadStore, match="of format 2; expected format 1"):
            built.open("mine")
        store.put(key, found.entry)
        assert rows(built.open("mine").kv) == rows(window.kv)


def test_tiers_keep_windows_as_well(tmp_path: Path) -> None:
    with engine(store=TieredStore(MemoryStore(1 << 20), DiskStore(tmp_path / "s"))) as built:
        window = built.window(STRICT)
        window.append(words(40, 1))
        window.save("mine")
        before = live(window)
        built.store.close()
    with engine(store=TieredStore(MemoryStore(1 << 20), DiskStore(tmp_path / "s"))) as built:
        assert same_bits(live(built.open("mine")), before)
        assert not torch.isnan(before.slots[0]).any()
        built.store.close()
