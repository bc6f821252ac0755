"""Ten thousand turns: memory stays what it was, and so do the books."""

from __future__ import annotations

import gc
import random
from pathlib import Path

import pytest

from agentkv.store.disk import DiskStore
from agentkv.store.memory import MemoryStore
from agentkv.store.tiers import TieredStore
from agentkv.testing import RecordingEngine, recording_engine, rows
from tests.runtime.cases import words

TURNS, SESSION = 10_000, 500
"""A window remembers every message it has held, and its history, as long as it is open: that is what an agent
may still ask for. So it is sessions that have to leave nothing behind."""


def resident() -> int:
    """Bytes of this process in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def session(engine: RecordingEngine, first: int) -> None:
    """Turns of an agent whose window slides, recalls, settles and forks."""
    draw = random.Random(first)
    with engine.window("fast", max_tokens=600) as window:
        window.append(words(20, 0), kind="system", pin=True)
        recent = [window.append(words(15, first + i)) for i in range(12)]
        for turn in range(first, first + SESSION):
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


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_ten_thousand_turns_leave_memory_as_it_was(tmp_path: Path) -> None:
    disk = DiskStore(tmp_path / "s", 400_000)
    store = TieredStore(MemoryStore(100_000), disk, mode="write_back", queue_bytes=50_000)
    seen: list[int] = []
    with recording_engine(store=store) as engine:
        for first in range(0, TURNS, SESSION):
            session(engine, first)
            assert store.nearest.nbytes <= 100_000
            assert disk.nbytes <= 400_000
            seen.append(resident())
        assert store.stats().entries < 20_000
        assert len(engine.chunks) < 20_000
        assert (tmp_path / "s" / "index.db").stat().st_size < 20 << 20
    store.close()
    early, late = seen[3], seen[-1]
    assert abs(late - early) < 0.05 * early, [round(size / 1e6) for size in seen]
