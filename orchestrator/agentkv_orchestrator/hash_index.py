"""A map from 64-bit hashes to integers without a Python object an entry: open addressing in two arrays."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]
Values = npt.NDArray[np.int32]

_FREE, _GONE = -1, -2
_FULLEST = 2 / 3
"""Linear probing looks at (1 + 1 / (1 - load)²) / 2 slots for a key that is not there: five at this load."""
_ROOMY = 1 / 2
"""Load after growing. The two loads make 12 to 16 bytes a key."""


class HashIndex:
    """Keys are well-mixed hashes, uint64; values are int32 and not negative.

    Of a key its upper 32 bits are kept (its tag), so other keys' values may be among those found: whoever
    looks up compares what a value stands for.
    """

    def __init__(self) -> None:
        self._count = self._used = 0  # used: with the places of what was removed
        self._tags = np.empty(0, dtype=np.uint32)
        self._values = np.empty(0, dtype=np.int32)
        self._resize(16)

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        return self._tags.nbytes + self._values.nbytes

    def find(self, key: int) -> Iterator[int]:
        """Values under a key's tag, first added first (unless some were removed)."""
        tag, size = key >> 32, self._values.size
        tags, values = self._tags, self._values
        slot = tag * size >> 32
        while (value := values.item(slot)) != _FREE:
            if value >= 0 and tags.item(slot) == tag:
                yield value
            slot = slot + 1 if slot + 1 < size else 0

    def find_many(self, keys: Keys) -> Values:
        """The first value under each of [n] keys, -1 where there is none: int32 [n]."""
        tags = (keys >> np.uint64(32)).astype(np.uint32)
        slots, found = self._homes(tags), np.full(tags.size, -1, dtype=np.int32)
        open_ = np.arange(tags.size)
        while open_.size:
            at = slots[open_]
            values = self._values[at]
            hit = (values >= 0) & (self._tags[at] == tags[open_])
            found[open_[hit]] = values[hit]
            open_ = open_[~hit & (values != _FREE)]
            slots[open_] = self._next(slots[open_])
        return found

    def add(self, key: int, value: int) -> None:
        """Put a value under a key, behind those that are there."""
        self._make_room(1)
        tag, size = key >> 32, self._values.size
        slot = tag * size >> 32
        while self._values.item(slot) != _FREE:
            slot = slot + 1 if slot + 1 < size else 0
        self._tags[slot], self._values[slot] = tag, value
        self._count += 1
        self._used += 1

    def add_many(self, keys: Keys, values: Values) -> None:
        """Put [n] values under [n] keys. A pair that is there twice may be put once."""
        self._make_room(keys.size)
        self._put((keys >> np.uint64(32)).astype(np.uint32), values)
        self._count += keys.size
        self._used += keys.size

    def remove(self, key: int, value: int) -> bool:
        """Take a pair out; whether it was there."""
        tag, size = key >> 32, self._values.size
        slot = tag * size >> 32
        while (there := self._values.item(slot)) != _FREE:
            if there == value and self._tags.item(slot) == tag:
                self._values[slot] = _GONE
                self._count -= 1
                return True
            slot = slot + 1 if slot + 1 < size else 0
        return False

    def _homes(self, tags: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        return (tags.astype(np.uint64) * np.uint64(self._values.size) >> np.uint64(32)).astype(np.int64)

    def _next(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        slots = slots + 1
        slots[slots == self._values.size] = 0
        return slots

    def _make_room(self, count: int) -> None:
        if self._used + count > _FULLEST * self._values.size:
            self._resize(int((self._count + count) / _ROOMY) + 16)

    def _resize(self, size: int) -> None:
        live = self._values >= 0
        tags, values = self._tags[live], self._values[live]
        self._tags = np.zeros(size, dtype=np.uint32)
        self._values = np.full(size, _FREE, dtype=np.int32)
        self._put(tags, values)
        self._count = self._used = values.size

    def _put(self, tags: npt.NDArray[np.uint32], values: Values) -> None:
        """Several may want one free slot: all write, and whoever reads himself back has it."""
        slots, open_ = self._homes(tags), np.arange(tags.size)
        while open_.size:
            at = slots[open_]
            free = self._values[at] == _FREE
            self._tags[at[free]], self._values[at[free]] = tags[open_[free]], values[open_[free]]
            there = free & (self._tags[at] == tags[open_]) & (self._values[at] == values[open_])
            open_ = open_[~there]
            slots[open_] = self._next(slots[open_])
