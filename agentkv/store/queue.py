"""What waits to be written behind a nearer store."""

from __future__ import annotations

import threading
from collections import OrderedDict

from agentkv.store.base import Key, Stored


class WriteQueue:
    """What waits to be written, in order: an entry, or None for one to be dropped. A newer one of the same
    key takes its place. limit: bytes that may wait."""

    def __init__(self, limit: int) -> None:
        self.limit, self.nbytes = limit, 0
        self._waiting: OrderedDict[Key, Stored | None] = OrderedDict()
        self._current: tuple[Key, Stored | None] | None = None
        self._closed = False
        self._changed = threading.Condition()

    def add(self, key: Key, stored: Stored | None) -> bool:
        size = _size(stored)
        with self._changed:
            before = _size(self._waiting.get(key))
            if self._closed or (size and self.nbytes - before + size > self.limit):
                return False
            self._waiting.pop(key, None)
            self._waiting[key] = stored
            self.nbytes += size - before
            self._changed.notify_all()
            return True

    def forget(self, key: Key) -> None:
        with self._changed:
            self.nbytes -= _size(self._waiting.pop(key, None))

    def find(self, key: Key) -> tuple[bool, Stored | None]:
        """Whether the key waits or is being written, and with what."""
        with self._changed:
            if key in self._waiting:
                return True, self._waiting[key]
            current = self._current
            return (True, current[1]) if current and current[0] == key else (False, None)

    def all(self) -> dict[Key, Stored | None]:
        with self._changed:
            current = dict([self._current]) if self._current else {}
            return {**current, **self._waiting}

    def take(self) -> tuple[Key, Stored | None] | None:
        """The next one, when there is one; None once closed. `done` ends it."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if not self._waiting:
                return None
            self._current = self._waiting.popitem(last=False)
            return self._current

    def done(self) -> None:
        with self._changed:
            self.nbytes -= _size(self._current[1] if self._current else None)
            self._current = None
            self._changed.notify_all()

    def wait_for_room(self) -> None:
        """Until at most half of what may wait does."""
        with self._changed:
            self._changed.wait_for(lambda: self.nbytes <= self.limit // 2)

    def drain(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and self._current is None)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def _size(stored: Stored | None) -> int:
    return 0 if stored is None else stored.entry.nbytes
