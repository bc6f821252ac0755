"""Texts to measure over: the user's own files, or the READMEs of the distributions installed here.

Which pieces stand in which window is decided by a seed, and a digest of the texts stands beside the results.
"""

from __future__ import annotations

import importlib.metadata
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from agentkv.demo.documents import readme
from agentkv.demo.errors import TooFewDocuments
from agentkv.diagnose.errors import BadText

SUFFIXES = (".md", ".rst", ".txt")
"""Files that are taken from a folder; a file that is named itself may have any."""


@dataclass(frozen=True)
class Document:
    """One text as token ids, at least one chunk long. name: of a distribution, or a path."""

    name: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """A run of one document's tokens; `start` is the first of them."""

    name: str
    start: int
    ids: tuple[int, ...]


def readmes() -> Iterator[tuple[str, str]]:
    """(name, text) of every installed distribution with a README, badges and headings at its top skipped:
    the text starts at the first long line of prose."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower()
        lines = readme(distribution).splitlines()
        start = next((i for i, line in enumerate(lines) if _prose(line)), None)
        if name and start is not None:
            found.setdefault(name, "\n".join(lines[start:]))
    yield from sorted(found.items())


def _prose(line: str) -> bool:
    return len(line) >= 70 and "http" not in line and "<" not in line


def read(paths: Sequence[Path]) -> list[tuple[str, str]]:
    """(path, text) of the files, and of all text files under the folders. Raises BadText."""
    files = [file for path in paths for file in _files(path)]
    return [(str(file), _text(file)) for file in dict.fromkeys(files)]


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise BadText(got=f"{str(path)!r}, which does not exist", expected="text", do="check the spelling")
    if path.is_file():
        return [path]
    found = sorted(f for f in path.rglob("*") if f.suffix.lower() in SUFFIXES and f.is_file())
    if not found:
        raise BadText(
            got=f"{str(path)!r}, a folder without a file that ends in {', '.join(SUFFIXES)}",
            expected="text files",
            do="name the files themselves",
        )
    return found


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadText(
            got=f"{str(path)!r}, which cannot be read as UTF-8 ({error})",
            expected="a text file",
            do="convert it, or leave it out",
        ) from error
    if not text.strip():
        raise BadText(got=f"{str(path)!r}, which is empty", expected="text", do="leave it out")
    return text


def tokenised(
    encode: Callable[[str], Sequence[int]], texts: Iterable[tuple[str, str]], length: int
) -> list[Document]:
    """The texts that have a piece of `length` tokens."""
    found = (Document(name, tuple(encode(text))) for name, text in texts)
    return [document for document in found if len(document.ids) >= length]


def split(pool: Sequence[Document], size: int, seed: int) -> tuple[list[Document], list[Document]]:
    """(to measure, to train on): no document in both, at least `size` in each. Raises TooFewDocuments."""
    if len(pool) < 2 * size:
        raise TooFewDocuments(
            got=f"{len(pool)} texts that are long enough for a chunk",
            expected=f"{2 * size}: {size} for a window, and {size} others to pool a basis over",
            do="give more texts, fewer chunks a window (--chunks) or shorter ones (--chunk-tokens)",
        )
    shuffled = random.Random(seed).sample(list(pool), len(pool))
    kept = max(size, len(pool) // 4)
    return shuffled[kept:], shuffled[:kept]


def windows(pool: Sequence[Document], count: int, size: int, length: int, seed: int) -> list[list[Piece]]:
    """`count` windows of `size` pieces of different documents; more windows start with the same ones.

    Raises TooFewDocuments.
    """
    if len(pool) < size:
        raise TooFewDocuments(
            got=f"{len(pool)} texts of {length} tokens", expected=f"{size} a window", do="give more texts"
        )
    names, starts = random.Random(seed), random.Random(~seed)
    return [[_piece(d, length, starts) for d in names.sample(pool, size)] for _ in range(count)]


def _piece(document: Document, length: int, draw: random.Random) -> Piece:
    """One of the pieces that `length` cuts the document into."""
    start = draw.randrange(len(document.ids) // length) * length
    return Piece(document.name, start, document.ids[start : start + length])


def digest(pool: Sequence[Document]) -> str:
    """32 hex digits over the tokens, in order; a folder may be called differently the next time."""
    return xxhash.xxh3_128(repr([d.ids for d in pool]).encode()).hexdigest()
