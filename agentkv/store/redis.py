"""The store on a Redis server: shared by processes and machines, in the format of the disk's blobs.

The server keeps the books itself, in scripts that run as one step each (`agentkv.store.redis_scripts`), so
the budget holds whoever writes. A server that cannot be reached, or does not answer in time, is a counted
miss, and is left alone for a moment: a slow server does not cost its time limit at every look-up.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar, cast

from agentkv_orchestrator.identity import digest_of
from redis import ConnectionPool, exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from agentkv.errors import InvalidInput
from agentkv.kv import KVBlock
from agentkv.store.base import PLAIN, Entry, Found, Key, Miss, Note, Origin, Refusal, Stats, Stored
from agentkv.store.blob import Unreadable
from agentkv.store.codec import RAW, Codecs
from agentkv.store.notes import Notes, note_text
from agentkv.store.redis_scripts import DROP, HELD, LISTED, PUT, USED
from agentkv.store.serde import dump, load, origin_of
from agentkv.store.share import Shares
from agentkv.store.wire import PartSource, Wire, WireSource

_T = TypeVar("_T")
FORMAT = 1
"""Of the keys on the server; stands in the prefix, so that another version's are not looked at."""


class RedisStore:
    """An LRU map inside a byte budget.

    url: redis://[user:password@]host:port/database, rediss:// for TLS. budget: bytes of blobs; tenant_bytes:
    of one tenant at most. name: stores of different names on one server do not meet. codecs: keep KV and
    patches in fewer bytes. patience: seconds that one operation may take. pause: seconds in which a server
    that failed is not asked again. The server must not evict by itself (maxmemory-policy noeviction): what it
    drops is a miss, but not every byte of it is accounted for. Raises InvalidInput for a budget below 1 and
    for an url that is none. A server that is not there is no error: it may come.
    """

    tier = "redis"

    def __init__(
        self,
        url: str = "redis://127.0.0.1:6379/0",
        budget: int = 20 << 30,
        tenant_bytes: int | None = None,
        *,
        name: str = "agentkv",
        codecs: Codecs = RAW,
        patience: float = 1.0,
        pause: float = 1.0,
    ) -> None:
        self._shares, self.budget, self.codecs = Shares(budget, tenant_bytes), budget, codecs
        self._prefix = f"{name}:{FORMAT}:"
        self._patience, self._pause = patience, pause
        self._pool = _pool(url, patience)
        self._stats, self._lock = Stats(self.tier, budget), threading.Lock()
        self._down: tuple[float, Refusal] = (0.0, "io")
        self._notes = Notes()

    def put(self, key: Key, entry: Entry, note: Note = PLAIN, origin: Origin | None = None) -> bool:
        buffers = dump(key, Stored(entry, note, origin), self.codecs)
        size = sum(b.nbytes for b in buffers)
        if not self._shares.possible(size):
            return self._refused("budget")
        name, told = _name(key), json.dumps([*key, size, note_text(note)])
        row = (self._prefix, name, key.tenant, self._place(key.chunk, key.tenant), size, told)

        def write(wire: Wire) -> int:
            wire.send(("MULTI",), ("EVAL", PUT, 0, *row, self.budget, self._shares.tenant_bytes))
            wire.send_set(f"{self._prefix}blob:{name}", buffers)
            wire.send(("EXEC",))
            *_, done = [wire.reply() for _ in range(4)]
            for result in done:
                if isinstance(result, Exception):
                    raise result
            return int(done[0])

        try:
            evicted = self._ask(write)
        except _Failed as failed:
            return self._refused(failed.why)
        with self._lock:
            self._stats.evicted += evicted
        return True

    def get(self, key: Key, rows: KVBlock | None = None) -> Stored | None:
        name = _name(key)

        def read(wire: Wire) -> Stored | None:
            wire.send(("GET", f"{self._prefix}blob:{name}"), ("EVAL", USED, 0, self._prefix, name))
            size = wire.bulk()
            stored = None if size is None else load(WireSource(wire, size), key, rows)
            if size is not None:
                wire.end()
            wire.reply()
            return stored

        try:
            stored = self._ask(read)
        except _Failed as failed:
            self._missed(failed.why)
            return None
        except Unreadable as error:
            if error.reason != "version":
                self.drop(key)
            self._missed(error.reason)
            return None
        if stored is None:
            self._missed("absent")
            return None
        with self._lock:
            self._stats.hits += 1
        return stored

    def drop(self, key: Key) -> bool:
        return bool(self._told(("EVAL", DROP, 0, self._prefix, _name(key)), 0))

    def keys(self, tenant: str | None = None) -> tuple[Key, ...]:
        one = () if tenant is None else (tenant,)
        listed = self._told(("EVAL", LISTED, 0, self._prefix, *one), [])
        uses = sorted((int(use), told) for use, told in zip(listed[::2], listed[1::2], strict=True))
        return tuple(_row(told)[0] for _, told in uses)

    def origins(self, keys: Collection[Key]) -> Mapping[Key, Origin]:
        found = {}
        for key in keys:
            blob = f"{self._prefix}blob:{_name(key)}"

            def part(first: int, stop: int, blob: str = blob) -> bytes:
                data: bytes = self._told(("GETRANGE", blob, first, stop - 1), b"")
                return data

            size = int(self._told(("STRLEN", blob), 0))
            with suppress(Unreadable):  # whoever wants the entry itself finds out, and counts it
                found[key] = origin_of(PartSource(part, size), key)
        return found

    def held(self, chunks: Collection[str], tenant: str = "") -> Mapping[Key, Found]:
        places = [self._place(chunk, tenant) for chunk in chunks]
        rows = map(_row, self._told(("EVAL", HELD, 0, *places), [])) if places else ()
        return {key: Found(self._notes.of(text), size, self.tier) for key, size, text in rows}

    @property
    def nbytes(self) -> int:
        return self.stats().nbytes

    def stats(self) -> Stats:
        flat = self._told(("HGETALL", f"{self._prefix}shares"), [])
        shares = {name.decode(): int(size) for name, size in zip(flat[::2], flat[1::2], strict=True)}
        entries = int(self._told(("HLEN", f"{self._prefix}rows"), 0))
        with self._lock:
            misses, refused = self._stats.misses.copy(), self._stats.refused.copy()
            return replace(
                self._stats,
                entries=entries,
                nbytes=sum(shares.values()),
                misses=misses,
                refused=refused,
                tenants=shares,
            )

    def flush(self) -> None:
        """What was put is on the server. Whether it outlives the server is the server's configuration."""

    def close(self) -> None:
        self._pool.disconnect()

    def _told(self, command: tuple[Any, ...], otherwise: Any) -> Any:
        """The reply to one small command; ``otherwise``, and a counted miss, where there is none."""

        def ask(wire: Wire) -> Any:
            wire.send(command)
            return wire.reply()

        try:
            return self._ask(ask)
        except _Failed as failed:
            self._missed(failed.why)
            return otherwise

    def _ask(self, work: Callable[[Wire], _T]) -> _T:
        """One exchange. Raises _Failed where the server does, and what ``work`` raises of its own."""
        until, why = self._down
        if time.monotonic() < until:
            raise _Failed(why)
        connection: Any = None
        try:
            connection = self._pool.get_connection()
            return work(Wire(connection, self._patience))
        except BaseException as error:
            if connection is not None:
                connection.disconnect()  # the rest of the exchange may be on its way
            if not isinstance(error, exceptions.RedisError | OSError):
                raise
            why = _why(error)
            if why != "full":
                self._down = (time.monotonic() + self._pause, why)
            raise _Failed(why) from error
        finally:
            if connection is not None:
                self._pool.release(connection)

    def _place(self, chunk: str, tenant: str) -> str:
        """Where the server keeps what is told of a chunk. No part of a key enters a name."""
        return self._prefix + digest_of(
            b"agentkv place", (b"chunk", chunk.encode()), (b"tenant", tenant.encode())
        )

    def _missed(self, why: Miss | Refusal) -> None:
        with self._lock:
            self._stats.misses["io" if why == "full" else cast(Miss, why)] += 1

    def _refused(self, why: Refusal) -> bool:
        with self._lock:
            self._stats.refused[why] += 1
        return False


class _Failed(Exception):
    """The server failed. why: what it is counted as."""

    def __init__(self, why: Refusal) -> None:
        super().__init__(why)
        self.why = why


def _why(error: Exception) -> Refusal:
    if isinstance(error, exceptions.TimeoutError | TimeoutError):
        return "timeout"
    return "full" if isinstance(error, exceptions.OutOfMemoryError) else "io"


def _pool(url: str, patience: float) -> ConnectionPool:
    try:
        return ConnectionPool.from_url(
            url,
            protocol=2,  # no message comes between a question and its answer
            driver_info=None,  # nor a question of the driver's own in front of the first
            socket_timeout=patience,
            socket_connect_timeout=patience,
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError as error:
        raise InvalidInput(
            got=f"{url!r} ({error})", expected="redis://host:port/database", do="see redis-py's from_url"
        ) from error


def _name(key: Key) -> str:
    """The name of an entry, as of its file on a disk."""
    return digest_of(b"agentkv blob", *((k.encode(), v.encode()) for k, v in key._asdict().items()))


def _row(told: bytes) -> tuple[Key, int, str]:
    """Key, bytes and note of an entry, as the server was told them."""
    *key, size, note = json.loads(told)
    return Key(*key), size, note
