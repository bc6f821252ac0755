"""Several stores as one: the nearest answers, the others remember.

What is put is kept in the nearest store at once and written to the others by a thread, so that no answer
waits for a disk. What is found further away comes nearer. Each store keeps its own budget.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal, Protocol, runtime_checkable

from agentkv.errors import InvalidInput
from agentkv.kv import KVBlock
from agentkv.store.base import PLAIN, Entry, Found, Key, Note, Origin, Refusal, Stats, Store, Stored
from agentkv.store.memory import By, MemoryStore, Price
from agentkv.store.price import told
from agentkv.store.queue import WriteQueue

Mode = Literal["write_through", "write_back"]
_COMING = 256
"""Entries on their way nearer at once, by `prefetch`; further ones are left where they are."""


@runtime_checkable
class Prefetching(Protocol):
    """A store that can bring entries nearer ahead of their use."""

    def prefetch(self, keys: Iterable[Key]) -> int:
        """Bring these nearer while others work; how many were taken up. A hint: nothing waits for it."""
        ...


class TieredStore:
    """nearest: where everything is put. others: what is behind it, nearest first.

    mode: "write_through" hands everything to the others as it comes, "write_back" what the nearest store has
    no room for any more, and the rest on `flush` and `close`. queue_bytes: what may wait to be written; what
    is more is not written, and counted: at worst a miss later. Raises InvalidInput without another store.
    """

    def __init__(
        self,
        nearest: MemoryStore,
        *others: Store,
        mode: Mode = "write_through",
        queue_bytes: int = 256 << 20,
    ) -> None:
        if not others:
            raise InvalidInput(
                got="one store", expected="a nearest one and others", do="use the one as it is"
            )
        self.nearest, self.others, self.mode = nearest, others, mode
        self.tier = nearest.tier
        self._queue = WriteQueue(queue_bytes)
        self._dirty: set[Key] = set()
        """In the nearest store, and not behind it as they are there."""
        self._coming: dict[Key, Future[Stored | None]] = {}
        self._fetching: dict[Key, object] = {}
        self._lock, self._counting = threading.Lock(), threading.Lock()
        self._hits = self._misses = 0
        self._refused = Counter[Refusal]()
        self._closed = False
        nearest.on_evict = self._left
        self._reader = ThreadPoolExecutor(1, "agentkv-prefetch")
        self._writer = threading.Thread(target=self._write_all, name="agentkv-store", daemon=True)
        self._writer.start()

    def evict_by(self, by: By, price: Price) -> None:
        """Of each store. Raises InvalidInput where one of them cannot be told."""
        for store in [told(store) for store in (self.nearest, *self.others)]:
            store.evict_by(by, price)

    def put(self, key: Key, entry: Entry, note: Note = PLAIN, origin: Origin | None = None) -> bool:
        with self._lock:
            self._fetching.pop(key, None)
            self._dirty.add(key)
        if self.nearest.put(key, entry, note, origin):
            if self.mode == "write_back":
                self._queue.forget(key)  # an older one, on its way
            elif (kept := self.nearest.peek(key)) is not None:
                self._later(key, kept)
            return True
        self.nearest.drop(key)  # an older one; this is too large for it
        with self._lock:
            self._dirty.discard(key)
        own = entry.clone() if isinstance(entry, KVBlock) and not entry.owned else entry
        return self._later(key, Stored(own, note, origin))

    def get(self, key: Key, rows: KVBlock | None = None) -> Stored | None:
        found = self.nearest.get(key)
        if found is None:
            waiting, found = self._queue.find(key)
            if not waiting:
                coming = self._coming.get(key)
                found = coming.result() if coming else self._fetched(key, rows)
        with self._lock:
            self._hits += found is not None
            self._misses += found is None
        return found

    def drop(self, key: Key) -> bool:
        with self._lock:
            self._fetching.pop(key, None)
            self._dirty.discard(key)
        there = key in self.held([key.chunk], key.tenant)
        self.nearest.drop(key)
        self._queue.add(key, None)
        return there

    def keys(self, tenant: str | None = None) -> tuple[Key, ...]:
        """Those of the furthest store first; what is nearer was used since."""
        near, queued = self.nearest.keys(tenant), self._queue.all()
        behind = (key for store in reversed(self.others) for key in store.keys(tenant))
        found = dict.fromkeys(key for key in behind if queued.get(key, PLAIN) is not None)
        coming = (key for key, waiting in queued.items() if waiting is not None)
        for key in (*(key for key in coming if tenant is None or key.tenant == tenant), *near):
            found.pop(key, None)
            found[key] = None
        return tuple(found)

    def origins(self, keys: Collection[Key]) -> Mapping[Key, Origin]:
        queued = {key: waiting.origin for key, waiting in self._queue.all().items() if waiting is not None}
        found = {key: origin for key in keys if (origin := queued.get(key)) is not None}
        for store in (self.nearest, *self.others):
            found |= store.origins([key for key in keys if key not in found])
        return found

    def held(self, chunks: Collection[str], tenant: str = "") -> Mapping[Key, Found]:
        # In the order in which entries move on, so that none is missed while it does.
        near, queued = self.nearest.held(chunks, tenant), self._queue.all()
        found: dict[Key, Found] = {}
        for store in reversed(self.others):
            found |= store.held(chunks, tenant)
        wanted = set(chunks)
        for key, waiting in queued.items():
            if key.chunk in wanted and key.tenant == tenant:
                found.pop(key, None)
                if waiting is not None:
                    found[key] = Found(waiting.note, waiting.entry.nbytes, self.tier)
        return {**found, **near}

    def prefetch(self, keys: Iterable[Key]) -> int:
        taken = 0
        for key in keys:
            with self._lock:
                if self._closed or key in self._coming or len(self._coming) >= _COMING:
                    continue
                if self.nearest.peek(key) is not None:
                    continue
                self._coming[key] = self._reader.submit(self._arrive, key)
            taken += 1
        return taken

    @property
    def nbytes(self) -> int:
        return sum(store.nbytes for store in (self.nearest, *self.others))

    def stats(self) -> Stats:
        """Sums over the stores, which are told `below`, nearest first. evicted: what the last one let go;
        refused: what was not written behind the nearest."""
        below = tuple(store.stats() for store in (self.nearest, *self.others))
        tenants = Counter[str]()
        for stats in below:
            tenants.update(stats.tenants)
        with self._counting:
            refused = self._refused.copy()
        with self._lock:
            return Stats(
                self.tier,
                sum(stats.budget for stats in below),
                sum(stats.entries for stats in below),
                sum(stats.nbytes for stats in below),
                self._hits,
                Counter({"absent": self._misses} if self._misses else {}),
                sum((stats.refused for stats in below[1:]), refused),
                below[-1].evicted,
                dict(tenants),
                self._queue.nbytes,
                below,
            )

    def flush(self) -> None:
        with self._lock:
            dirty = tuple(self._dirty)
        for key in dirty:
            self._queue.wait_for_room()
            stored = self.nearest.peek(key)
            if stored is not None and not self._queue.add(key, stored):
                self._write(key, stored)
        self._queue.drain()
        for store in (self.nearest, *self.others):
            store.flush()

    def close(self) -> None:
        if self._closed:
            return
        self.flush()
        self._closed = True
        self._reader.shutdown(wait=True, cancel_futures=True)
        self._queue.close()
        self._writer.join()
        self.nearest.on_evict = None
        for store in (self.nearest, *self.others):
            store.close()

    def _later(self, key: Key, stored: Stored) -> bool:
        """Hand an entry to the writer; whether there was room for it to wait."""
        taken = self._queue.add(key, stored)
        if not taken:
            self._count("queue")
        return taken

    def _count(self, why: Refusal) -> None:
        with self._counting:
            self._refused[why] += 1

    def _left(self, key: Key, stored: Stored) -> None:
        """The nearest store made room, and is locked: `_lock` may be held by who waits for it. What is behind
        it already need not be written again."""
        if key in self._dirty:
            self._dirty.discard(key)
            self._later(key, stored)

    def _fetched(self, key: Key, rows: KVBlock | None = None) -> Stored | None:
        """From further away, and nearer from now on, unless the key was put or dropped meanwhile, or it goes
        into the rows of a window: then it is as near as can be."""
        token = object()
        with self._lock:
            self._fetching[key] = token
        found = next((found for store in self.others if (found := store.get(key, rows)) is not None), None)
        with self._lock:
            if self._fetching.pop(key, None) is token and found is not None and rows is None:
                self.nearest.put(key, *found)
        return found

    def _arrive(self, key: Key) -> Stored | None:
        try:
            waiting, found = self._queue.find(key)
            return found if waiting else self._fetched(key)
        finally:
            with self._lock:
                self._coming.pop(key, None)

    def _write_all(self) -> None:
        while (item := self._queue.take()) is not None:
            try:
                self._write(*item)
            except Exception:  # a store that breaks its promise must not stop the writes of all others
                self._count("io")
            finally:
                self._queue.done()

    def _write(self, key: Key, stored: Stored | None) -> None:
        if stored is None:
            for store in self.others:
                store.drop(key)
            return
        kept = [store.put(key, *stored) for store in self.others]
        now = self.nearest.peek(key)
        if any(kept) and now is not None and now.entry is stored.entry:
            with self._lock:
                self._dirty.discard(key)
