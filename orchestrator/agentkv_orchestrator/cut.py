"""Content-defined cutting: where a chunk ends depends on the tokens near its end and on nothing else.

So an edit moves only the cuts near it, and text that comes back is cut as it was before.

The hash is Gear's, in its right-shifting XOR form: h_i = XOR over k < 64 of (G(t_{i-k}) >> k), with
G = splitmix64 of the token id (any vocabulary, no table). Gear is usually written as a left-shifting sum,
h_i = 2·h_{i-1} + G(t_i), whose low 7 bits see the last 7 tokens only; in this form every token of the window
reaches the low bits. It also doubles: a window of 2w is the window of w, XOR itself w tokens ago >> w, so 64
tokens take six vectorised passes.
"""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from .chunks import Ids
from .errors import ChunkError

_Hashes = npt.NDArray[np.uint64]
_BLOCK = 1 << 15
"""Tokens hashed at a time: the block and its scratch stay in the L2 cache."""
LARGEST = 512
"""The longest piece."""


def cut(
    ids: npt.ArrayLike,
    boundaries: Iterable[int] = (),
    *,
    window: int = 64,
    bits: int = 7,
    smallest: int = 32,
    largest: int = LARGEST,
) -> list[tuple[int, int]]:
    """Cut [n] token ids into (start, stop) pieces that cover them in order.

    A cut falls after token i where the low `bits` bits of h_i are 0 (every 2^bits tokens on average), pieces
    being `smallest` to `largest` tokens long. `boundaries` (message edges) are cuts as well, and what stands
    between two of them is cut as if nothing stood around it. Only a piece before a boundary or the end may be
    shorter than `smallest`, and only where the piece before it has no room. Raises ChunkError for a window
    that is no power of two up to 64 and for impossible sizes.
    """
    if window not in (1, 2, 4, 8, 16, 32, 64):
        raise ChunkError(f"a window of {window}", "a power of two up to 64", "keep the default of 64")
    if not 1 <= smallest <= largest:
        raise ChunkError(f"sizes {smallest} to {largest}", "1 <= smallest <= largest", "keep the defaults")
    tokens = np.asarray(ids, dtype=np.int64).reshape(-1)
    edges = sorted({0, tokens.size, *(b for b in boundaries if 0 < b < tokens.size)})
    pieces: list[tuple[int, int]] = []
    for start, stop in pairwise(edges):
        hits = _hits(tokens[start:stop], window, bits) if stop - start > smallest else []
        pieces += [(start + a, start + b) for a, b in _pieces(hits, stop - start, smallest, largest)]
    return pieces


def _hits(tokens: Ids, window: int, bits: int) -> list[int]:
    """Where a cut may fall: one past every token whose hash has its low bits 0."""
    found: list[int] = []
    mask = np.uint64((1 << bits) - 1)
    for start in range(0, tokens.size, _BLOCK):
        warm = min(start, window - 1)  # the tokens a window reaches back over
        hashes = _gear(tokens[start - warm : start + _BLOCK], window)[warm:]
        found += (np.flatnonzero((hashes & mask) == 0) + (start + 1)).tolist()
    return found


def _gear(tokens: Ids, window: int) -> _Hashes:
    """h_i of every token, uint64 [n]; near the start the window holds what there is."""
    hashes = splitmix64(tokens.astype(np.uint64))
    width = 1
    while width < window:
        hashes[width:] ^= hashes[:-width] >> np.uint64(width)
        width *= 2
    return hashes


def splitmix64(x: _Hashes) -> _Hashes:
    """Steele, Lea and Flood's finaliser: 64 well-mixed bits from any integer. Works in place."""
    x += np.uint64(0x9E3779B97F4A7C15)
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def _pieces(hits: list[int], size: int, smallest: int, largest: int) -> list[tuple[int, int]]:
    """Walk the hits of one segment, keeping pieces within bounds."""
    cuts = [0]
    for hit in [*hits, size]:
        while hit - cuts[-1] > largest:
            cuts.append(cuts[-1] + largest)
        if hit - cuts[-1] >= smallest:
            cuts.append(hit)
    if cuts[-1] < size:
        # The remainder is short: give it to the piece before where that has room.
        if len(cuts) > 1 and size - cuts[-2] <= largest:
            cuts.pop()
        cuts.append(size)
    return list(pairwise(cuts))
