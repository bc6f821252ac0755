"""The store in this process's memory; an evictor says which entries make room for others."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping

from agentkv_orchestrator.eviction import LRU, Evictor, Item

from agentkv.errors import InvalidInput
from agentkv.kv import KVBlock
from agentkv.store.base import Entry, Key, Note

Price = Callable[[Key, Entry, Note], float]
"""Milliseconds that an entry saves when its chunk comes back."""


def by_size(key: Key, entry: Entry, note: Note) -> float:
    """Every byte saves as much: an evictor by benefit then goes by reuse alone."""
    return float(entry.nbytes)


class MemoryStore:
    """A map inside a byte budget.

    budget: bytes of tensors it may hold. evictor: who makes room, the least recently used by default. price:
    what the evictor is told an entry is worth (`agentkv.store.price.price_by`). Raises InvalidInput for a
    budget below 1.
    """

    def __init__(
        self, budget: int = 2 << 30, evictor: Evictor[Key] | None = None, price: Price = by_size
    ) -> None:
        if budget < 1:
            raise InvalidInput(
                got=f"a budget of {budget} bytes", expected="at least 1 byte", do="pass a larger budget"
            )
        self.budget = budget
        self._entries: OrderedDict[Key, Entry] = OrderedDict()
        self._notes: dict[str, dict[Key, Note]] = {}
        self._evictor, self._price = evictor if evictor is not None else LRU[Key](), price
        self._pinned: set[Key] = set()
        self._nbytes = 0
        self._lock = threading.Lock()

    def put(self, key: Key, entry: Entry, note: Note | None = None) -> bool:
        size = entry.nbytes
        if size > self.budget:
            return False
        # A view would pin (and share) the whole window it was cut from.
        kept = entry.clone() if isinstance(entry, KVBlock) and not entry.owned else entry
        beside = note or Note()
        with self._lock:
            before = self._entries.get(key)
            need = self._nbytes + size - self.budget - (before.nbytes if before is not None else 0)
            leaving = self._evictor.victims(need, key) if need > 0 else []
            if leaving is None:
                return False
            pinned = key in self._pinned
            for victim in (*leaving, key):
                self._remove(victim)
            self._entries[key] = kept
            self._notes.setdefault(key.chunk, {})[key] = beside
            self._nbytes += size
            self._tell(key, pinned)
        return True

    def pin(self, key: Key, on: bool = True) -> bool:
        """Keep the entry whatever room others need, or no longer; whether there is one. `drop` works on."""
        with self._lock:
            if key not in self._entries:
                return False
            self._tell(key, on)
            return True

    def get(self, key: Key) -> Entry | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
                self._evictor.use(key)
            return entry

    def drop(self, key: Key) -> bool:
        with self._lock:
            return self._remove(key)

    def keys(self) -> tuple[Key, ...]:
        with self._lock:
            return tuple(self._entries)

    def held(self, chunk: str) -> Mapping[Key, Note]:
        with self._lock:
            return dict(self._notes.get(chunk, {}))

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def _tell(self, key: Key, pinned: bool) -> None:
        """What the evictor has to know of an entry that came, or was pinned."""
        entry, note = self._entries[key], self._notes[key.chunk][key]
        (self._pinned.add if pinned else self._pinned.discard)(key)
        self._evictor.put(key, Item(entry.nbytes, key.kind, self._price(key, entry, note), pinned))

    def _remove(self, key: Key) -> bool:
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self._evictor.drop(key)
        self._pinned.discard(key)
        self._nbytes -= entry.nbytes
        siblings = self._notes[key.chunk]
        del siblings[key]
        if not siblings:
            del self._notes[key.chunk]
        return True
