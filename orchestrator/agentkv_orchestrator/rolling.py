"""Hashes of runs of tokens wherever they stand, all from one sum over the text (Karp and Rabin 1987).

With P_i = Σ_{j < i} G(t_j)·r^j mod 2^64, the run from a to b has the hash (P_b − P_a)·r^−a, which does not
depend on a: so every window of every length is one subtraction and one product away. r is odd (it has an
inverse) and drawn anew for each process, as is what G mixes in. Modulo 2^64 there are runs that collide
whatever r is (after Thue and Morse), so these hashes find candidates only, whose tokens are then compared.
"""

import secrets

import numpy as np
import numpy.typing as npt

from .chunks import Ids
from .cut import splitmix64

Hashes = npt.NDArray[np.uint64]


class Rolling:
    """secret: 128 bits from which the multiplier and the salt are made; None draws them."""

    def __init__(self, secret: int | None = None) -> None:
        drawn = secrets.randbits(128) if secret is None else secret
        # 5 modulo 8: powers of r repeat after 2^62, the longest there is.
        self._r = (drawn & ((1 << 64) - 1)) >> 3 << 3 | 5
        self._salt = np.uint64(drawn >> 64 & ((1 << 64) - 1))
        self._powers = self._inverses = np.ones(1, dtype=np.uint64)

    def sums(self, ids: Ids) -> Hashes:
        """P_0 … P_n of [n] tokens, uint64 [n + 1]. P_i is the hash of the first i tokens, not yet mixed."""
        self._reach(ids.size + 1)
        terms = splitmix64(ids.astype(np.uint64) ^ self._salt) * self._powers[: ids.size]
        sums = np.zeros(ids.size + 1, dtype=np.uint64)
        np.cumsum(terms, out=sums[1:])
        return sums

    def runs(self, sums: Hashes, starts: npt.NDArray[np.int64], width: int) -> Hashes:
        """Hashes of the runs of `width` tokens from each of `starts` [k] on, uint64 [k]."""
        return splitmix64((sums[starts + width] - sums[starts]) * self._inverses[starts])

    def prefixes(self, sums: Hashes) -> Hashes:
        """Hashes of the prefixes that these sums are of."""
        return splitmix64(sums.copy())

    def _reach(self, count: int) -> None:
        if self._powers.size < count:
            size = max(1024, 2 * count)
            self._powers = _powers(self._r, size)
            self._inverses = _powers(pow(self._r, -1, 1 << 64), size)


def _powers(base: int, count: int) -> Hashes:
    factors = np.full(count, base, dtype=np.uint64)
    factors[0] = 1
    return np.multiply.accumulate(factors)
