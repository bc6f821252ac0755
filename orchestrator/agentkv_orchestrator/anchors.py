"""Windows that known chunks left at fixed distances, by which parts of them are found (Irminsul's S1)."""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from .hash_index import HashIndex
from .rolling import Hashes, Rolling
from .tokens import Ids32

ANCHOR = 32
"""Tokens of an anchor: as many as the shortest chunk that cutting makes has."""
STRIDE = 128
"""Between the anchors of a chunk; one more stands at its end, so that an edit leaves one on either side."""


class Anchors:
    """From the hash of a window to the entry that left it there. rolling: the hash of all texts."""

    def __init__(self, rolling: Rolling) -> None:
        self._rolling, self._index = rolling, HashIndex()

    @property
    def nbytes(self) -> int:
        return self._index.nbytes

    def leave(self, sums: Hashes, made: Iterable[tuple[int, int, int]]) -> None:
        """Those of new entries, each (entry, start, stop) of the text that `sums` are of. A window that is
        known already stays with whoever left it: one key has one value, however many chunks begin alike."""
        places = [(entry, start + o) for entry, start, stop in made for o in offsets(stop - start)]
        if places:
            entries, starts = np.array(places).T
            keys, first = np.unique(self._rolling.runs(sums, starts, ANCHOR), return_index=True)
            fresh = self._index.find_many(keys) < 0
            self._index.add_many(keys[fresh], entries[first[fresh]].astype(np.int32))

    def remove(self, entry: int, tokens: Ids32) -> None:
        """What an entry left, by its tokens [n]."""
        if starts := offsets(tokens.size):
            sums = self._rolling.sums(tokens.astype(np.int64))
            for key in self._rolling.runs(sums, np.array(starts), ANCHOR).tolist():
                self._index.remove(key, entry)

    def inside(self, sums: Hashes, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """(place, entry) of every window within start:stop that somebody may have left, in order."""
        starts = np.arange(start, stop - ANCHOR + 1)
        entries = self._index.find_many(self._rolling.runs(sums, starts, ANCHOR))
        for i in np.flatnonzero(entries >= 0).tolist():
            yield start + i, int(entries[i])


def offsets(size: int) -> list[int]:
    """Where the anchors of a chunk of this size begin."""
    if size < ANCHOR:
        return []
    return sorted({*range(0, size - ANCHOR + 1, STRIDE), size - ANCHOR})


def grown(known: Ids32, ids: npt.NDArray[np.int64], at: int, first: int) -> tuple[int, int, int] | None:
    """The longest run of ids [n] from `first` on that holds the anchor at `at` and agrees with `known`.

    Returns (start, stop, offset in known), or None where no anchor of `known` is that window.
    """
    for offset in offsets(known.size):
        if np.array_equal(known[offset : offset + ANCHOR], ids[at : at + ANCHOR]):
            back = min(at - first, offset)
            ahead = min(ids.size - at, known.size - offset)
            left = _agreeing(known[offset - back : offset][::-1], ids[at - back : at][::-1])
            right = _agreeing(known[offset : offset + ahead], ids[at : at + ahead])
            return at - left, at + right, offset - left
    return None


def _agreeing(a: npt.NDArray[np.integer], b: npt.NDArray[np.integer]) -> int:
    """How many leading numbers of two arrays of one length are the same."""
    same = a == b
    return same.size if same.all() else int(np.argmin(same))
