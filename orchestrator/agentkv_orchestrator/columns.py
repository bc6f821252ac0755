"""What a registry notes of every chunk: one number a column, no object an entry."""

from array import array

import numpy as np
import numpy.typing as npt

_GROWTH = 1.25


class Columns:
    """Entries by number. A number that was given back is used again.

    offsets: int64, where the tokens of an entry stand. A length of 0 marks a number that is free.
    """

    def __init__(self) -> None:
        self.offsets = np.zeros(0, dtype=np.int64)
        self._lengths = np.zeros(0, dtype=np.int32)
        self._ages = np.zeros(0, dtype=np.uint8)
        self._ids = np.zeros((0, 0), dtype=np.uint8)
        self._free = array("i")
        self._age = 0
        self.top = self.count = self.tokens = 0

    @property
    def nbytes(self) -> int:
        arrays = (self.offsets, self._lengths, self._ages, self._ids)
        return sum(a.nbytes for a in arrays) + len(self._free) * self._free.itemsize

    @property
    def key_bytes(self) -> int:
        """Of the ids of all entries."""
        return self.count * self._ids.shape[1]

    def add(self, raw: bytes, offset: int, length: int) -> int:
        """The number of a new entry. raw: its id; all ids of a registry are equally long."""
        if self._free:
            entry = self._free.pop()
        else:
            entry, self.top = self.top, self.top + 1
            if entry == self._lengths.size:
                self._grow(len(raw))
        self.offsets[entry], self._lengths[entry], self._ages[entry] = offset, length, self._age
        self._ids[entry] = np.frombuffer(raw, dtype=np.uint8)
        self.count += 1
        self.tokens += length
        return entry

    def remove(self, entry: int) -> None:
        self.tokens -= self.length(entry)
        self.count -= 1
        self._lengths[entry] = 0
        self._free.append(entry)

    def length(self, entry: int) -> int:
        return int(self._lengths.item(entry))

    def raw(self, entry: int) -> bytes:
        return self._ids[entry].tobytes()

    def id(self, entry: int) -> str:
        return self.raw(entry).hex()

    def touch(self, entry: int) -> None:
        """It was asked for."""
        self._ages[entry] = self._age

    def live(self) -> npt.NDArray[np.intp]:
        """All entries."""
        return np.flatnonzero(self._lengths[: self.top])

    def turn(self, kept: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
        """Begin a new age; who is not kept (bool [top]) and was not asked for in the one that ends."""
        idle = self._ages[: self.top] != self._age
        self._age = (self._age + 1) % 256
        return np.flatnonzero(idle & ~kept & (self._lengths[: self.top] > 0))

    def _grow(self, width: int) -> None:
        size = max(64, int(self._lengths.size * _GROWTH))
        for name in ("offsets", "_lengths", "_ages"):
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old, np.zeros(size - old.size, dtype=old.dtype)]))
        ids = np.zeros((size, width), dtype=np.uint8)
        ids[: len(self._ids)] = self._ids if len(self._ids) else 0
        self._ids = ids
