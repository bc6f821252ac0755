"""Ten thousand turns: memory stays what it was, and so do the books."""

from __future__ import annotations

import gc
import random
from pathlib import Path

import pytest

from agentkv import Handle, Window
from agentkv.store.disk import DiskStore
from agentkv.store.memory import MemoryStore
from agentkv.store.tiers import TieredStore
from agentkv.testing import RecordingEngine, recording_engine, rows
from tests.runtime.cases import words

TURNS, LOOK = 10_000, 500
"""Memory is looked at every so many turns."""


def resident() -> int:
    """Bytes of this process in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def turns(window: Window, recent: list[Handle], first: int, count: int) -> None:
    """Turns of an agent whose window slides, recalls, forks and settles."""
    draw = random.Random(first)
    for turn in range(first, first + count):
        recent.append(window.append(words(15, 100 + turn)))
        gone = recent.pop(0)
        window.evict(gone)
        window.commit()
        if turn % 4 == 0:
            window.recall(gone, before=recent[draw.randrange(len(recent))])
            window.commit()
            window.evict(gone)
        if turn % 10 == 0:
            with window.fork() as twin:
                twin.append(words(9, turn))
                twin.commit()
    window.settle()
    assert rows(window.kv) == window.ids().tolist()


def opened(engine: RecordingEngine, first: int) -> tuple[Window, list[Handle]]:
    """A window and the messages in it that may leave."""
    window = engine.window("fast", max_tokens=600)
    window.append(words(20, 0), kind="system", pin=True)
    return window, [window.append(words(15, first + i)) for i in range(12)]


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("windows", [20, 1])
def test_ten_thousand_turns_leave_memory_as_it_was(tmp_path: Path, windows: int) -> None:
    """In windows that are opened and closed, and in a single one, which remembers what it is told to."""
    disk = DiskStore(tmp_path / "s", 400_000)
    store = TieredStore(MemoryStore(100_000), disk, mode="write_back", queue_bytes=50_000)
    seen: list[int] = []
    with recording_engine(store=store, remembered=500) as engine:
        for first in range(0, TURNS, LOOK):
            if first % (TURNS // windows) == 0:
                window, recent = opened(engine, first)
            turns(window, recent, first, LOOK)
            if (first + LOOK) % (TURNS // windows) == 0:
                window.close()
            engine.backend.calls.clear()  # the recording is the test's own
            assert store.nearest.nbytes <= 100_000
            assert disk.nbytes <= 400_000
            seen.append(resident())
        assert store.stats().entries < 20_000
        assert len(engine.chunks) < 20_000
        assert (tmp_path / "s" / "index.db").stat().st_size < 20 << 20
    store.close()
    early, late = seen[3], seen[-1]
    assert abs(late - early) < 0.05 * early, [round(size / 1e6, 1) for size in seen]
