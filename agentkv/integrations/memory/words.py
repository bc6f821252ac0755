"""Ranking by words: BM25, for a search that has no embedding model.

    score(q, d) = Σ_w∈q ln(1 + (N − n + ½) / (n + ½)) · f · (k + 1) / (f + k · (1 − b + b · |d| / mean |d|))

N texts, n of them with the word w, which text d holds f times among its |d| words (Robertson and Zaragoza,
"The Probabilistic Relevance Framework", 2009).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

_K, _B = 1.2, 0.75
_WORD = re.compile(r"\w+")


def scores(query: str, texts: Sequence[str]) -> list[float]:
    """BM25 of each text, 0 for one without any of the query's words. Case does not count."""
    wanted = set(_words(query))
    counts = [Counter(_words(text)) for text in texts]
    lengths = [counted.total() for counted in counts]
    mean = sum(lengths) / max(len(lengths), 1) or 1.0
    having = Counter(word for counted in counts for word in wanted & counted.keys())
    weight = {word: math.log(1 + (len(texts) - n + 0.5) / (n + 0.5)) for word, n in having.items()}

    def one(counted: Counter[str], length: int) -> float:
        norm = _K * (1 - _B + _B * length / mean)
        return sum(weight[w] * counted[w] * (_K + 1) / (counted[w] + norm) for w in wanted & counted.keys())

    return list(map(one, counts, lengths))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())
