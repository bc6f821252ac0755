"""The store on a Redis server, against a real one: conformance, silence, restarts, damage, and tenants."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

import pytest
import redis
import torch

from agentkv.errors import InvalidInput
from agentkv.kv import KVBlock
from agentkv.store.base import Key, Note
from agentkv.store.disk import DiskStore
from agentkv.store.redis import RedisStore, _name
from agentkv.store.tenancy import TenantStore
from agentkv.testing import StoreConformance, kv_block, same_bits
from tests.redis_server import Server, free_port, redis_server
from tests.runtime.cases import assert_kv, engine, ids, live

BUDGET = 1 << 20
PATIENCE = 0.3
SLOWEST = 3 * PATIENCE
"""What a bounded wait may take on a busy machine."""


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    with redis_server() as server:
        yield server


@pytest.fixture
def server() -> Iterator[Server]:
    with redis_server() as own:
        yield own


def store_on(server: Server, name: str = "", budget: int = BUDGET, **options: Any) -> RedisStore:
    options = {"patience": PATIENCE, "pause": 0.0, **options}
    return RedisStore(server.url, budget, name=name or uuid4().hex, **options)


def key(name: int) -> Key:
    return Key("conditioned", f"chunk{name}", "context")


def right(store: RedisStore, name: int, seed: int) -> bool:
    found = store.get(key(name))
    return found is not None and same_bits(found.entry, kv_block(24, seed))  # type: ignore[arg-type]


class TestRedisStore(StoreConformance):
    @pytest.fixture(autouse=True)
    def _server(self, shared: Server) -> None:
        self.server = shared

    def make(self, budget: int) -> RedisStore:
        return store_on(self.server, budget=budget, patience=20.0)


def test_two_clients_share_one_store(shared: Server) -> None:
    one = store_on(shared, "shared", patience=20.0)
    other = store_on(shared, "shared", patience=20.0)
    one.put(key(1), kv_block(24, 1), Note(0.25))
    assert right(other, 1, 1)
    assert other.held([key(1).chunk])[key(1)].note == Note(0.25)
    assert store_on(shared, "another").get(key(1)) is None
    other.drop(key(1))
    assert one.get(key(1)) is None
    assert one.nbytes == 0


def test_the_budget_is_that_of_all_clients(shared: Server) -> None:
    name = uuid4().hex
    stores = [store_on(shared, name, budget=60_000, patience=20.0) for _ in range(3)]
    failed: list[int] = []

    def fill(number: int) -> None:
        for turn in range(30):
            stores[number].put(key(100 * number + turn), kv_block(24, turn))
            if stores[number].nbytes > 60_000:
                failed.append(stores[number].nbytes)

    threads = [threading.Thread(target=fill, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    client = redis.Redis(port=shared.port)
    blobs = sum(client.strlen(name) for name in client.scan_iter(f"{name}:*:blob:*", count=1000))
    assert blobs == stores[0].nbytes
    assert stores[0].stats().entries == len(stores[0].keys()) > 0


def test_the_blobs_are_those_of_the_disk(shared: Server, tmp_path: Any) -> None:
    store, disk = store_on(shared, "blobs", patience=20.0), DiskStore(tmp_path, BUDGET)
    for one in (store, disk):
        one.put(key(1), kv_block(24, 1), Note(0.5))
    blob = redis.Redis(port=shared.port).get(f"blobs:1:blob:{_name(key(1))}")
    assert blob == disk.folder.blob(key(1)).read_bytes()


def test_a_server_that_is_not_there_is_a_counted_miss() -> None:
    store = RedisStore(f"redis://127.0.0.1:{free_port()}/0", BUDGET, patience=PATIENCE, pause=0.0)
    start = time.monotonic()
    assert store.get(key(1)) is None
    assert not store.put(key(1), kv_block(24))
    assert store.held(["a"]) == {}
    assert store.keys() == ()
    assert not store.drop(key(1))
    assert (store.nbytes, store.stats().entries) == (0, 0)
    assert time.monotonic() - start < 9 * SLOWEST
    assert store.stats().misses["io"] >= 4
    assert store.stats().refused == {"io": 1}
    store.close()


def test_a_silent_server_takes_its_patience_once(server: Server) -> None:
    store = store_on(server, pause=60.0)
    store.put(key(1), kv_block(24, 1))
    server.freeze(True)
    try:
        start = time.monotonic()
        assert store.get(key(1)) is None
        assert time.monotonic() - start < SLOWEST
        start = time.monotonic()
        for _ in range(100):
            assert store.get(key(1)) is None
        assert not store.put(key(1), kv_block(24))
        assert time.monotonic() - start < SLOWEST
    finally:
        server.freeze(False)
    assert store._stats.misses["timeout"] == 101
    assert store._stats.refused["timeout"] == 1
    store._down = (0.0, "io")  # the pause is over
    assert right(store, 1, 1)


def test_a_server_that_answers_byte_by_byte_is_given_up() -> None:
    """Each byte comes in time, the answer does not."""
    listener = socket.create_server(("127.0.0.1", 0))
    done = threading.Event()

    def trickle() -> None:
        peer, _ = listener.accept()
        peer.recv(1 << 16)
        for byte in b"$100000\r\n" + b"x" * 1000:
            if done.wait(PATIENCE / 10):
                break
            try:
                peer.sendall(bytes([byte]))
            except OSError:
                break
        peer.close()

    thread = threading.Thread(target=trickle)
    thread.start()
    store = RedisStore(f"redis://127.0.0.1:{listener.getsockname()[1]}/0", BUDGET, patience=PATIENCE)
    start = time.monotonic()
    assert store.get(key(1)) is None
    assert time.monotonic() - start < SLOWEST
    assert sum(store._stats.misses.values()) == 1
    done.set()
    thread.join()
    listener.close()


def test_a_restart_of_the_server_is_survived(server: Server) -> None:
    store = store_on(server)
    for name in range(4):
        store.put(key(name), kv_block(24, name))
    server.stop()
    assert store.get(key(1)) is None
    assert not store.put(key(1), kv_block(24))
    server.start()
    assert store.get(key(1)) is None  # it forgot
    assert store.nbytes == 0
    assert store.put(key(1), kv_block(24, 1))
    assert right(store, 1, 1)
    assert store.stats().nbytes == store.held([key(1).chunk])[key(1)].nbytes


@pytest.mark.parametrize("way", ["flipped", "cut", "empty", "noise", "swapped", "gone", "version"])
def test_a_damaged_blob_is_never_a_tensor(shared: Server, way: str) -> None:
    store, client = store_on(shared, patience=20.0), redis.Redis(port=shared.port)
    for name in range(2):
        store.put(key(name), kv_block(24, name))
    one, other = (f"{store._prefix}blob:{_name(key(name))}" for name in range(2))
    blob = client.get(one)
    assert isinstance(blob, bytes)
    match way:
        case "flipped":
            client.set(one, blob[:-3] + bytes([blob[-3] ^ 4]) + blob[-2:])
        case "cut":
            client.set(one, blob[:-1])
        case "empty":
            client.set(one, b"")
        case "noise":
            client.set(one, bytes(range(256)) * 9)
        case "swapped":
            client.set(one, client.get(other))  # type: ignore[arg-type]
        case "gone":
            client.delete(one)
        case "version":
            client.set(one, blob.replace(b'\\"format\\":1', b'\\"format\\":2'))
    assert store.get(key(0)) is None
    reasons = {"flipped": "checksum", "swapped": "foreign", "gone": "absent", "version": "version"}
    assert store.stats().misses == {reasons.get(way, "torn"): 1}
    assert right(store, 1, 1)
    if way != "version":  # whoever reads that version still has it
        assert store.keys() == (key(1),)
        assert store.nbytes == len(client.get(other))  # type: ignore[arg-type]
    assert store.put(key(0), kv_block(24, 5))
    assert right(store, 0, 5)


def test_every_cut_of_an_exchange_is_a_miss(shared: Server) -> None:
    """A peer that hangs up after any number of bytes, or says something else, never gives a tensor."""
    store = store_on(shared, "cuts", patience=20.0)
    store.put(key(1), kv_block(3, 1))
    blob = redis.Redis(port=shared.port).get(f"cuts:1:blob:{_name(key(1))}")
    assert isinstance(blob, bytes)
    answer = b"$%d\r\n%b\r\n:0\r\n" % (len(blob), blob)
    says = [answer[:n] for n in (*range(0, len(answer) - 5, 97), len(answer) - 5)]
    says += [
        b"-ERR no\r\n",
        b"+OK\r\n",
        b"$zz\r\n",
        b"$99999999999999999999\r\n",
        b"\x00" * 99,
        b":1\r\n:0\r\n",
    ]
    with talking() as (port, said):
        fooled = RedisStore(f"redis://127.0.0.1:{port}/0", BUDGET, patience=PATIENCE, pause=0.0)
        for said[0] in says:
            assert fooled.get(key(1)) is None
    assert sum(fooled._stats.misses.values()) >= len(says)
    assert fooled._stats.hits == 0


@contextmanager
def talking() -> Iterator[tuple[int, list[bytes]]]:
    """A port where whoever asks is told the first of the list, and hung up on."""
    listener, said, over = socket.create_server(("127.0.0.1", 0)), [b""], threading.Event()
    listener.settimeout(0.05)

    def talk() -> None:
        while not over.is_set():
            with suppress(OSError):
                peer, _ = listener.accept()
                with peer:
                    peer.settimeout(PATIENCE)
                    peer.recv(1 << 16)
                    peer.sendall(said[0])

    thread = threading.Thread(target=talk)
    thread.start()
    try:
        yield listener.getsockname()[1], said
    finally:
        over.set()
        thread.join()
        listener.close()


def test_a_full_server_refuses_and_goes_on(server: Server) -> None:
    redis.Redis(port=server.port).config_set("maxmemory", "3mb")
    store = store_on(server, budget=1 << 30)
    for name in range(300):
        store.put(key(name), kv_block(100, name))
    stats = store.stats()
    assert stats.refused["full"] > 0
    assert 0 < stats.entries < 300
    assert stats.nbytes < 3 << 20


def test_tenants_have_quotas(shared: Server) -> None:
    store = store_on(shared, budget=100_000, tenant_bytes=30_000, patience=20.0)
    ann, bob = TenantStore(store, "ann"), TenantStore(store, "bob")
    bob.put(key(0), kv_block(24, 0))
    for name in range(40):
        ann.put(key(name), kv_block(24, name))
    assert ann.nbytes <= 30_000
    assert bob.get(key(0)) is not None
    assert ann.get(key(0)) is None
    assert bob.held([key(39).chunk]) == {}
    assert not store.put(key(50), kv_block(600))
    assert store.stats().refused == {"budget": 1}


def test_names_on_the_server_tell_nothing(shared: Server) -> None:
    store, client = store_on(shared, "quiet", patience=20.0), redis.Redis(port=shared.port)
    TenantStore(store, "ann's secret").put(Key("canonical", "../secret chunk"), kv_block(24))
    assert not [name for name in client.scan_iter("quiet:*", count=1000) if b"secret" in name]


@pytest.mark.parametrize("url", ["http://127.0.0.1", "nothing", "redis://127.0.0.1:port/0"])
def test_an_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="redis://host:port/database"):
        RedisStore(url)


def test_rows_hold_no_tensor_and_nothing_to_run(shared: Server) -> None:
    """What the server tells of entries is JSON, whoever wrote it; what is none is an error, not code."""
    store, client = store_on(shared, "rows", patience=20.0), redis.Redis(port=shared.port)
    store.put(key(1), KVBlock((torch.zeros(1, 2, 1, 1),), torch.arange(2)))
    (told,) = client.hvals(store._place(key(1).chunk, ""))
    assert json.loads(told)[:4] == list(key(1))


def test_what_one_engine_stored_another_one_loads(shared: Server) -> None:
    """Over a server: the second computes nothing, and its rows are those of the first."""
    name, texts = uuid4().hex, [ids(60, seed) for seed in range(3)]
    rows = []
    for turn in range(2):
        with engine(store=store_on(shared, name, budget=1 << 26, patience=20.0)) as built:
            window = built.window("fast")
            handles = [window.append_ids(text) for text in texts]
            plan = window.commit()
            computed = sum(op.tokens for op in plan.ops if op.op == "prefill")
            assert computed == (0 if turn else 180 + len(built.lead))
            rows.append(live(window))
            for handle in handles:
                window.evict(handle)
            if len(built.lead):
                window.pin(window.content.live()[0].handle, on=False)
                window.evict(window.content.live()[0].handle)
            window.commit()
    assert_kv(rows[1], rows[0])
