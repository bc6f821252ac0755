"""The registry: which runs of tokens are known, found again wherever they stand (Irminsul's registry).

A prompt is matched in this order: the longest prefix that was seen as a prefix; behind it the chunks that
content-defined cutting makes, where boundaries at message and tool-schema edges force cuts (S2); and what
these miss by anchors (S1): windows that known chunks left at fixed distances, which a rolling hash finds at
any offset and which grow to both sides as far as the tokens agree. Every hit compares tokens: a hash only
says where to look.

Nothing here is a Python object an entry: columns of numbers, hash indexes, and the tokens.
"""

import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .anchors import ANCHOR, Anchors, grown
from .chunks import Chunk, Digest, Ids, digest
from .columns import Columns
from .cut import LARGEST, cut
from .errors import ChunkError
from .hash_index import HashIndex
from .prefixes import Prefixes
from .rolling import Hashes, Rolling
from .spans import Span
from .tokens import BLOCK, Ids32, Tokens


class Sizes(NamedTuple):
    """Bytes. overhead: all that is neither the id nor a token of a known chunk, room to grow included."""

    keys: int
    tokens: int
    overhead: int


class Registry:
    """Every chunk that one model was shown. Threads may share it.

    fingerprint: model and tokenizer, part of every id. digest: names contents; two of them under one name
    raise ChunkError, and none is ever taken for the other.
    secret: of the rolling hash, for tests.
    """

    def __init__(self, fingerprint: str, digest: Digest = digest, secret: int | None = None) -> None:
        self.fingerprint, self._digest = fingerprint, digest
        self._rolling = Rolling(secret)
        self._tokens, self._columns = Tokens(), Columns()
        self._ids, self._anchors, self._prefixes = HashIndex(), Anchors(self._rolling), Prefixes()
        self._modalities: dict[int, bytes] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._columns.count

    @property
    def sizes(self) -> Sizes:
        """What it takes."""
        parts = (self._columns, self._tokens, self._ids, self._anchors, self._prefixes)
        keys, tokens = self._columns.key_bytes, self._columns.tokens * 4
        return Sizes(keys, tokens, sum(part.nbytes for part in parts) - keys - tokens)

    def register(
        self, ids: npt.ArrayLike, kind: str, modality: bytes = b"", span: int | None = None
    ) -> Chunk:
        """The chunk of these tokens ([n] integers), known from now on. Raises ChunkError for none, for more
        than BLOCK, and for what is no token id.

        modality: digest of what placeholder tokens stand for. span: position ids it takes; None for text,
        which takes one a token.
        """
        tokens = _checked(ids)
        with self._lock:
            entry, made = self._entered(tokens, modality)
            if made and not modality:
                self._anchors.leave(self._rolling.sums(tokens), [(entry, 0, tokens.size)])
            return self._chunk(entry, kind, span)

    def register_all(self, texts: Iterable[npt.ArrayLike]) -> None:
        """As `register` of each text, in a fraction of the time."""
        checked = [_checked(ids) for ids in texts]
        if not checked:
            return
        with self._lock:
            fresh, stop = list[tuple[int, int, int]](), 0
            for tokens in checked:
                start, stop = stop, stop + tokens.size
                entry, made = self._entered(tokens)
                if made:
                    fresh.append((entry, start, stop))
            self._anchors.leave(self._rolling.sums(np.concatenate(checked)), fresh)

    def find(self, ids: npt.ArrayLike, modality: bytes = b"") -> str | None:
        """The id of the chunk that these tokens are, or None."""
        tokens = _checked(ids)
        with self._lock:
            found = self._entry_of(tokens, modality)
            return None if found is None else self._columns.id(found)

    def match(
        self, ids: npt.ArrayLike, boundaries: Iterable[int] = (), sink: int | None = None
    ) -> list[Span]:
        """What is known of a prompt, [n] ids, in order and without gaps; neighbouring tokens that nobody
        knows are one span up to the next boundary.

        boundaries: message and tool-schema edges; no span reaches over one. sink: of a text that opens a
        sequence, how many of its first tokens are reused as an exact prefix only, being the attention sink;
        None for what stands inside of one, which has no prefix.
        """
        tokens = np.asarray(ids, dtype=np.int64).reshape(-1)
        with self._lock:
            return self._matched(tokens, self._rolling.sums(tokens), boundaries, sink)

    def admit(
        self, ids: npt.ArrayLike, kind: str, boundaries: Iterable[int] = (), sink: int | None = None
    ) -> list[tuple[Chunk, Span]]:
        """Match a prompt and register all of it: its chunks in order, each with the span that it was found
        as. Arguments as in `match`. Raises ChunkError."""
        tokens = _checked(ids)
        with self._lock:
            sums = self._rolling.sums(tokens)
            spans = [
                piece
                for span in self._matched(tokens, sums, boundaries, sink)
                for piece in (_cut(tokens, span) if span.found == "new" else [span])
            ]
            found = [self._entered(tokens[s.start : s.stop]) for s in spans]
            fresh = [(entry, s.start, s.stop) for (entry, made), s in zip(found, spans, strict=True) if made]
            self._anchors.leave(sums, fresh)
            if sink is not None:
                stops, entries = np.array([s.stop for s in spans]), np.array([entry for entry, _ in found])
                self._prefixes.add(self._rolling.prefixes(sums[stops]), entries, len(self))
            return [(self._chunk(entry, kind), s) for (entry, _), s in zip(found, spans, strict=True)]

    def knows(self, chunk_id: str) -> bool:
        """Whether an id was given out and not forgotten since."""
        with self._lock:
            return self._at(chunk_id) is not None

    def length(self, chunk_id: str) -> int | None:
        """Tokens of a chunk, or None for an id that is not known."""
        with self._lock:
            entry = self._at(chunk_id)
            return None if entry is None else self._columns.length(entry)

    def modality(self, chunk_id: str) -> bytes:
        """Digest of what a registered chunk's placeholder tokens stand for; empty for text."""
        with self._lock:
            entry = self._at(chunk_id)
            return b"" if entry is None else self._modalities.get(entry, b"")

    def ids(self, chunk_id: str) -> Ids:
        """Tokens of a registered chunk, int64 [n], read-only. Raises ChunkError for an unknown id."""
        with self._lock:
            entry = self._at(chunk_id)
            if entry is None:
                raise ChunkError(f"chunk {chunk_id}", "a registered chunk", "register its tokens first")
            tokens = self._view(entry).astype(np.int64)
        tokens.setflags(write=False)
        return tokens

    def drop(self, chunk_id: str) -> bool:
        """Forget a chunk; whether it was known. Its id comes back when its tokens do."""
        with self._lock:
            entry = self._at(chunk_id)
            if entry is not None:
                self._forget(entry)
                self._compact()
            return entry is not None

    def retain(self, kept: Iterable[str]) -> int:
        """Forget every chunk that is not kept and that nobody asked for since the last call; how many.

        So whoever registers a chunk has until the call after the next to say that it is kept.
        """
        with self._lock:
            wanted = np.zeros(self._columns.top, dtype=bool)
            wanted[[entry for chunk in kept if (entry := self._at(chunk)) is not None]] = True
            gone = self._columns.turn(wanted)
            for entry in gone.tolist():
                self._forget(entry)
            self._compact()
            return int(gone.size)

    def _matched(self, tokens: Ids, sums: Hashes, boundaries: Iterable[int], sink: int | None) -> list[Span]:
        edges = sorted({0, tokens.size, *(b for b in boundaries if 0 < b < tokens.size)})
        spans = [] if sink is None else self._prefix(tokens, sums, edges)
        front = spans[-1].stop if spans else 0
        pieces = cut(tokens[front:], [edge - front for edge in edges])
        for start, stop in [(front + a, front + b) for a, b in pieces]:
            entry = self._entry_of(tokens[start:stop])
            if entry is not None:
                spans.append(Span(start, stop, "chunk", self._columns.id(entry)))
            elif spans and spans[-1].found == "new" and start not in edges:
                spans[-1] = Span(spans[-1].start, stop)
            else:
                spans.append(Span(start, stop))
        found = chain.from_iterable(
            self._recovered(tokens, sums, span) if span.found == "new" else [span] for span in spans
        )
        return [part for span in found for part in span.carved(sink or 0, ANCHOR)]

    def _prefix(self, tokens: Ids, sums: Hashes, edges: Sequence[int]) -> list[Span]:
        """The longest chain of known chunks, each ending where a known prefix ends, over no boundary."""
        ends: dict[int, Span] = {}  # by where a chain can end: its last chunk
        keys = self._rolling.prefixes(sums)
        for first, last in ((1, LARGEST + 1), (LARGEST + 1, keys.size)):
            for i, entry in self._prefixes.along(keys[first:last]):
                stop, at = first + i, first + i - self._columns.length(entry)
                if at and at not in ends:
                    continue
                edge = edges[min(bisect_right(edges, at), len(edges) - 1)]
                if stop <= edge and _equal(self._view(entry), tokens[at:stop]):
                    ends[stop] = Span(at, stop, "prefix", self._columns.id(entry))
            if not ends:  # one that is known ends within the longest chunk
                break
        spans: list[Span] = []
        at = max(ends, default=0)
        while at:
            spans.append(ends[at])
            at = spans[-1].start
        return spans[::-1]

    def _recovered(self, tokens: Ids, sums: Hashes, miss: Span) -> Iterator[Span]:
        """The parts of known chunks in a miss, and what is left between them."""
        done, text = miss.start, tokens[: miss.stop]
        for at, entry in self._anchors.inside(sums, miss.start, miss.stop):
            run = grown(self._view(entry), text, at, done) if at >= done else None
            if run is None:
                continue
            start, stop, offset = run
            if done < start:
                yield Span(done, start)
            whole = self._entry_of(tokens[start:stop])
            known = self._columns.id(entry if whole is None else whole)
            yield (
                Span(start, stop, "part", known, offset)
                if whole is None
                else Span(start, stop, "chunk", known)
            )
            done = stop
        if done < miss.stop:
            yield Span(done, miss.stop)

    def _entry_of(self, tokens: Ids, modality: bytes = b"") -> int | None:
        """The entry of this content."""
        entry = self._at(self._digest(tokens, self.fingerprint, modality))
        return entry if entry is not None and self._is(entry, tokens, modality) else None

    def _entered(self, tokens: Ids, modality: bytes = b"") -> tuple[int, bool]:
        """The entry of this content, and whether it was made now."""
        chunk_id = self._digest(tokens, self.fingerprint, modality)
        entry, raw = self._at(chunk_id), bytes.fromhex(chunk_id)
        if entry is None:
            entry = self._columns.add(raw, self._tokens.append(tokens), tokens.size)
            self._ids.add(_key(raw), entry)
            if modality:
                self._modalities[entry] = modality
            return entry, True
        if not self._is(entry, tokens, modality):
            got, do = (
                f"two contents under the digest {chunk_id}",
                "use a digest that cannot be made to collide",
            )
            raise ChunkError(got, "one", do)
        self._columns.touch(entry)
        return entry, False

    def _is(self, entry: int, tokens: Ids, modality: bytes) -> bool:
        return self._modalities.get(entry, b"") == modality and _equal(self._view(entry), tokens)

    def _forget(self, entry: int) -> None:
        self._ids.remove(_key(self._columns.raw(entry)), entry)
        if self._modalities.pop(entry, None) is None:
            self._anchors.remove(entry, self._view(entry))
        self._columns.remove(entry)

    def _compact(self) -> None:
        """Once most of them are idle, copy the tokens that are wanted; entries keep their numbers."""
        if self._tokens.nbytes - BLOCK * 4 > 2 * self._columns.tokens * 4:
            packed = Tokens()
            for entry in self._columns.live().tolist():
                self._columns.offsets[entry] = packed.append(self._view(entry))
            self._tokens = packed

    def _at(self, chunk_id: str) -> int | None:
        try:
            raw = bytes.fromhex(chunk_id)
        except ValueError:
            return None
        return next((e for e in self._ids.find(_key(raw)) if self._columns.raw(e) == raw), None)

    def _view(self, entry: int) -> Ids32:
        return self._tokens.view(int(self._columns.offsets[entry]), self._columns.length(entry))

    def _chunk(self, entry: int, kind: str, span: int | None = None) -> Chunk:
        length, media = self._columns.length(entry), entry in self._modalities
        span = length if span is None else span
        return Chunk(id=self._columns.id(entry), kind=kind, length=length, span=span, media=media)


def _checked(ids: npt.ArrayLike) -> Ids:
    tokens = np.asarray(ids, dtype=np.int64).reshape(-1)
    if tokens.size == 0:
        raise ChunkError("no tokens", "at least one", "leave empty messages out of the window")
    return tokens


def _equal(known: Ids32, tokens: Ids) -> bool:
    """As numpy.array_equal, which takes ten times as long for a chunk."""
    return known.size == tokens.size and known.astype(np.int64).tobytes() == tokens.tobytes()


def _key(raw: bytes) -> int:
    return int.from_bytes(raw[:8], "big")


def _cut(tokens: Ids, span: Span) -> list[Span]:
    pieces = cut(tokens[span.start : span.stop])
    return [Span(span.start + a, span.start + b) for a, b in pieces]
