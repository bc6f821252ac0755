"""Windows to measure: chunks of several kinds and sizes, and edits of them, drawn by a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agentkv.calibrate.texts import Kind, Pool
from agentkv.demo.errors import TooFewDocuments

SIZES = (16, 32, 64, 112, 176, 256)
"""Tokens of a chunk, markers not counted."""
MOST_TOKENS = 1200
"""Of a window: what a re-prefill costs is what bounds how many windows there are."""
HEADED = 0.8
"""Share of the windows with a system message in front."""
CHUNKS = (4, 10)
"""Fewest and most in a window."""


@dataclass(frozen=True)
class Piece:
    """A run of tokens of one source."""

    kind: Kind
    source: str
    start: int
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Edit:
    """What the live window holds, and what it is to hold, as numbers of pieces.

    live: the order in which its KV was computed. Pieces that are wanted and not live were live once, in the
    full window, or are new.
    """

    name: str
    live: tuple[int, ...]
    wanted: tuple[int, ...]


@dataclass(frozen=True)
class Drawn:
    """A full window of the first `size` pieces, edits of it, and pieces that only edits bring.

    headed: whether something that never leaves, a system message, stands in front.
    """

    pieces: tuple[Piece, ...]
    size: int
    headed: bool
    edits: tuple[Edit, ...]


def draw(pools: Sequence[Pool], draw: random.Random, edits: int) -> Drawn:
    """One window and `edits` different edits of it. Raises TooFewDocuments."""
    headed = draw.random() < HEADED
    count = draw.randint(*CHUNKS)
    pieces: list[Piece] = []
    total = 0
    while len(pieces) < count + 1:  # the last one is new to the window
        piece = _piece(pools, draw)
        if len(pieces) >= CHUNKS[0] and total + len(piece.ids) > MOST_TOKENS:
            break
        pieces.append(piece)
        total += len(piece.ids)
    size = len(pieces) - 1
    chosen = draw.sample(list(EDITS), edits)
    return Drawn(
        tuple(pieces), size, headed, tuple(replace(EDITS[name](size, draw), name=name) for name in chosen)
    )


def _piece(pools: Sequence[Pool], draw: random.Random) -> Piece:
    for _ in range(100):
        pool, length = draw.choice(pools), draw.choice(SIZES)
        source = draw.choice(sorted(pool.ids))
        ids = pool.ids[source]
        if len(ids) >= length:
            start = draw.randrange(len(ids) - length + 1)
            return Piece(pool.kind, source, start, ids[start : start + length])
    raise TooFewDocuments(
        got=f"texts of which hardly one has {SIZES[0]} tokens", expected="longer ones", do="give more text"
    )


def _slide(size: int, draw: random.Random) -> Edit:
    """The oldest leave."""
    full = tuple(range(size))
    return Edit("", full, full[draw.randint(1, max(1, (2 * size) // 3)) :])


def _hole(size: int, draw: random.Random) -> Edit:
    """A run of neighbours leaves from the middle."""
    full = tuple(range(size))
    first = draw.randint(1, size - 2)
    last = draw.randint(first + 1, min(size - 1, first + 3))
    return Edit("", full, full[:first] + full[last:])


def _insert(size: int, draw: random.Random) -> Edit:
    """One comes to stand in front of others that were computed without it."""
    full = tuple(range(size))
    at = draw.randint(0, size - 2)
    return Edit("", full[:at] + full[at + 1 :], full)


def _recall(size: int, draw: random.Random) -> Edit:
    """One that left comes back behind the others."""
    full = tuple(range(size))
    at = draw.randint(0, size - 2)
    others = full[:at] + full[at + 1 :]
    return Edit("", others, (*others, at))


def _reorder(size: int, draw: random.Random) -> Edit:
    """Some change places."""
    full = list(range(size))
    first = draw.randint(0, size - 2)
    last = draw.randint(first + 2, size)
    part = full[first:last]
    while part == full[first:last]:
        draw.shuffle(part)
    return Edit("", tuple(full), (*full[:first], *part, *full[last:]))


def _replace(size: int, draw: random.Random) -> Edit:
    """Another one stands in its place."""
    full = tuple(range(size))
    at = draw.randint(0, size - 2)
    return Edit("", full, (*full[:at], size, *full[at + 1 :]))


def _turnover(size: int, draw: random.Random) -> Edit:
    """Much leaves at once, and a new one comes somewhere."""
    full = tuple(range(size))
    kept = [i for i in full if draw.random() < 0.6] or [full[-1]]
    kept.insert(draw.randint(0, len(kept) - 1), size)
    return Edit("", full, tuple(kept))


EDITS: dict[str, Callable[[int, random.Random], Edit]] = {
    "slide": _slide,
    "hole": _hole,
    "insert": _insert,
    "recall": _recall,
    "reorder": _reorder,
    "replace": _replace,
    "turnover": _turnover,
}
"""By name. A chunk that leaves and comes back at its place is an insertion seen from those behind it."""
