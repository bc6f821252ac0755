"""What a store held before an engine is found again, and parts of it: no process has to meet it whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agentkv_orchestrator.chunks import digest

from agentkv import Engine
from agentkv.store.base import Key, Origin, Store
from agentkv.store.disk import DiskStore
from agentkv.store.known import known_texts
from agentkv.store.memory import MemoryStore
from agentkv.store.redis import RedisStore
from agentkv.store.tiers import TieredStore
from agentkv.testing import kv_block
from tests.redis_server import Server, redis_server
from tests.runtime.cases import engine, ids
from tests.runtime.test_prompts import prefilled

WHOLE = ids(150, 7)
FRONT = ids(50, 8)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with redis_server() as started:
        yield started


def left_by_another(store: Store, **settings: Any) -> None:
    """An engine that is gone has stored a chunk that stood behind another."""
    with engine(chat=True, store=store, **settings) as built:
        window = built.window("fast")
        window.append_ids(FRONT)
        gone = window.append_ids(WHOLE)
        window.commit()
        window.evict(gone)
        window.commit()
    store.flush()


def computed(built: Engine) -> int:
    """Tokens run through the model for the end of that chunk, behind the same front."""
    window = built.window("fast")
    window.append_ids(FRONT)
    window.commit()
    window.append_ids(WHOLE[60:])
    count = prefilled(window.commit())
    assert window.ids().tolist() == [*FRONT, *WHOLE[60:]]
    return count


@pytest.mark.parametrize("kind", ["disk", "tiers", "redis"])
def test_a_part_of_what_another_process_stored_is_taken_from_it(
    tmp_path: Path, kind: str, server: Server
) -> None:
    def made() -> Store:
        if kind == "redis":
            return RedisStore(server.url, 1 << 24)
        disk = DiskStore(tmp_path / "s")
        return disk if kind == "disk" else TieredStore(MemoryStore(1 << 20), disk)

    store = made()
    left_by_another(store)
    store.close()
    again = made()
    with engine(chat=True, store=again) as built:
        assert computed(built) == 0
    again.close()


def test_none_is_found_where_none_is_asked_for_and_none_of_another_tenant_or_model(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "s")
    left_by_another(store, tenant="ann")
    for tenant, count in (("", 90), ("bob", 90), ("ann", 0)):
        with engine(chat=True, store=store, stored_texts=8, tenant=tenant) as built:
            assert computed(built) == count
    with engine(chat=True, store=store, tenant="carl", stored_texts=0) as built:
        assert computed(built) == 90
    with engine("qwen3", chat=True, store=store, tenant="ann") as built:
        built.admit(ids(40, 1), "note")
        assert len(built.chunks) <= 2


def test_those_used_last_are_read_and_images_are_not(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "s")
    texts = [np.arange(i, i + 9, dtype=np.int64) for i in range(5)]
    for i, text in enumerate(texts):
        modality = b"\x01" if i == 4 else b""
        for kind in ("conditioned", "canonical", "patch") if i < 3 else ("canonical",):
            origin = Origin(text, modality, "f" * 40)
            key = Key(kind, digest(text, origin.fingerprint, modality))
            store.put(key, kv_block(9), origin=origin)
    found = [text[0] for text in known_texts(store, "f" * 40, 3, lambda chunk: False)]
    assert found == [3, 2]
    assert [t[0] for t in known_texts(store, "f" * 40, 9, lambda chunk: False)] == [3, 2, 1, 0]
    assert not list(known_texts(store, "e" * 40, 9, lambda chunk: False))
    assert not list(known_texts(store, "f" * 40, 9, lambda chunk: True))
    for path in store.folder.blobs():
        path.write_bytes(path.read_bytes()[:-4])
    assert not list(known_texts(store, "f" * 40, 9, lambda chunk: False))
    assert set(store.stats().misses) == set()
