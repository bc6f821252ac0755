"""The store in this process's memory: least recently used entries leave first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping

from agentkv.errors import InvalidInput
from agentkv.kv import KVBlock
from agentkv.store.base import Entry, Key, Note


class MemoryStore:
    """An LRU map inside a byte budget.

    budget: bytes of tensors it may hold. Raises InvalidInput for a budget below 1.
    """

    def __init__(self, budget: int = 2 << 30) -> None:
        if budget < 1:
            raise InvalidInput(
                got=f"a budget of {budget} bytes", expected="at least 1 byte", do="pass a larger budget"
            )
        self.budget = budget
        self._entries: OrderedDict[Key, Entry] = OrderedDict()
        self._notes: dict[str, dict[Key, Note]] = {}
        self._nbytes = 0
        self._lock = threading.Lock()

    def put(self, key: Key, entry: Entry, note: Note | None = None) -> bool:
        size = entry.nbytes
        if size > self.budget:
            return False
        # A view would pin (and share) the whole window it was cut from.
        kept = entry.clone() if isinstance(entry, KVBlock) and not entry.owned else entry
        with self._lock:
            self._remove(key)
            while self._nbytes + size > self.budget:
                self._remove(next(iter(self._entries)))
            self._entries[key] = kept
            self._notes.setdefault(key.chunk, {})[key] = note or Note()
            self._nbytes += size
        return True

    def get(self, key: Key) -> Entry | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
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

    def _remove(self, key: Key) -> bool:
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self._nbytes -= entry.nbytes
        siblings = self._notes[key.chunk]
        del siblings[key]
        if not siblings:
            del self._notes[key.chunk]
        return True
