"""Which prefixes of prompts were seen, by the hash of all their tokens."""

from collections.abc import Iterator

from .hash_index import HashIndex, Keys, Values

FEWEST = 1024


class Prefixes:
    """From the hash of a prefix to the entry of its last chunk. What was not seen for long is forgotten.

    Two generations: what is met goes into the young one, and once that is full the older one goes.
    """

    def __init__(self) -> None:
        self._young, self._old = HashIndex(), HashIndex()

    @property
    def nbytes(self) -> int:
        return self._young.nbytes + self._old.nbytes

    def add(self, keys: Keys, entries: Values, limit: int) -> None:
        """Note prefixes [n] and their last chunks: where one was cut otherwise before, the newest cut counts,
        so that the chain of a prompt that was seen is whole. limit: of how many to know."""
        known = self._young.find_many(keys)
        fresh = known != entries
        for i in (fresh & (known >= 0)).nonzero()[0].tolist():
            self._young.remove(int(keys[i]), int(known[i]))
        self._young.add_many(keys[fresh], entries[fresh])
        if len(self._young) > max(FEWEST, limit) // 2:
            self._young, self._old = HashIndex(), self._young

    def along(self, keys: Keys) -> Iterator[tuple[int, int]]:
        """(index, entry) of those of [n] keys that are known, in order."""
        entries = self._young.find_many(keys)
        missing = entries < 0
        entries[missing] = self._old.find_many(keys[missing])
        for i in (entries >= 0).nonzero()[0].tolist():
            yield i, int(entries[i])
