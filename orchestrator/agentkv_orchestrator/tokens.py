"""Token ids of many chunks, four bytes a token, in blocks that are never copied as they grow."""

import numpy as np
import numpy.typing as npt

from .errors import ChunkError

Ids32 = npt.NDArray[np.int32]

BLOCK = 1 << 16
"""Tokens of a block, and the most of one chunk."""
_LARGEST = 2**31 - 1


class Tokens:
    """Append-only; what is no longer wanted goes when the owner copies the rest into a new one."""

    def __init__(self) -> None:
        self._blocks: list[Ids32] = []
        self._filled = BLOCK

    def append(self, ids: npt.NDArray[np.integer]) -> int:
        """Copy [n] ids in; where they stand. Raises ChunkError for more than BLOCK and for what is no id."""
        if ids.size > BLOCK or ids.min() < 0 or ids.max() > _LARGEST:
            got = f"a chunk of {ids.size} tokens, ids from {ids.min()} to {ids.max()}"
            raise ChunkError(got, f"at most {BLOCK} ids from 0 to {_LARGEST}", "cut the text first")
        if self._filled + ids.size > BLOCK:
            self._blocks.append(np.empty(BLOCK, dtype=np.int32))
            self._filled = 0
        start = self._filled
        self._filled = start + ids.size
        self._blocks[-1][start : self._filled] = ids
        return (len(self._blocks) - 1) * BLOCK + start

    def view(self, at: int, count: int) -> Ids32:
        """[count] ids that were appended at `at`; not to be written to."""
        start = at % BLOCK
        return self._blocks[at // BLOCK][start : start + count]

    @property
    def nbytes(self) -> int:
        """Of all blocks, the unfilled rest of the last one included."""
        return len(self._blocks) * BLOCK * 4
