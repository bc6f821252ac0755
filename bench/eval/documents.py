"""Real documents: the READMEs in the metadata of the distributions installed here.

The choice is deterministic for one environment, and a digest of it is written beside the results.
"""

import hashlib
import importlib.metadata
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass


class TooFewDocumentsError(RuntimeError):
    """The environment holds fewer long READMEs than the run asked for."""


@dataclass(frozen=True)
class Chunk:
    """The first `len(ids)` tokens of one distribution's README."""

    name: str
    ids: tuple[int, ...]


def chunks(encode: Callable[[str], Sequence[int]], length: int) -> list[Chunk]:
    """One chunk of `length` tokens per distribution whose README is long enough, by name.

    Badges and headings at the top are skipped: the chunk starts at the first long line of prose.
    """
    found: dict[str, Chunk] = {}
    for distribution in importlib.metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower()
        text = distribution.metadata.get("Description") or distribution.metadata.get_payload() or ""
        lines = str(text).splitlines()
        start = next((i for i, line in enumerate(lines) if _prose(line)), None)
        if not name or start is None or name in found:
            continue
        ids = tuple(encode("\n".join(lines[start:])))
        if len(ids) >= length:
            found[name] = Chunk(name, ids[:length])
    return [found[name] for name in sorted(found)]


def _prose(line: str) -> bool:
    return len(line) >= 70 and "http" not in line and "<" not in line


def windows(pool: Sequence[Chunk], count: int, size: int, seed: int) -> list[list[Chunk]]:
    """`count` windows of `size` different documents each, drawn with `seed`. Raises TooFewDocumentsError."""
    if len(pool) < size:
        raise TooFewDocumentsError(f"{len(pool)} documents for windows of {size}: install more packages")
    rng = random.Random(seed)
    return [rng.sample(pool, size) for _ in range(count)]


def digest(chosen: Sequence[Sequence[Chunk]]) -> str:
    """16 hex digits over names and tokens."""
    text = repr([[(c.name, c.ids) for c in window] for window in chosen])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
