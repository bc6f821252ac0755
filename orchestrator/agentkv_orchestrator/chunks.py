"""Chunks: runs of tokens with one identity.

A chunk's id is a digest of its token ids, of the pixels or samples behind them and of the model that
reads them. xxh3 is fast and not cryptographic, so equal ids are never taken for equal content: the
table compares the tokens.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator
from xxhash import xxh3_128_hexdigest

from .errors import ChunkError
from .lineage import Lineage

Ids = npt.NDArray[np.int64]
Digest = Callable[[Ids, str, bytes], str]


def _hash(*fields: tuple[bytes, bytes]) -> str:
    """Hash (one-byte tag, payload) fields. Tag and length keep "ab","c" apart from "a","bc"."""
    return xxh3_128_hexdigest(
        b"".join(part for tag, data in fields for part in (tag, len(data).to_bytes(8, "little"), data))
    )


def digest(ids: Ids, fingerprint: str, modality: bytes = b"") -> str:
    """Identity of a run of tokens: 32 hex characters.

    ids: int64 [n]; fingerprint: model and tokenizer; modality: digest of what placeholder tokens stand for.
    """
    tokens = np.ascontiguousarray(ids, dtype="<i8").tobytes()
    return _hash((b"t", tokens), (b"f", fingerprint.encode()), (b"m", modality))


def context_key(chunk_ids: Iterable[str]) -> str:
    """Key of an ordered list of antecedents."""
    return Lineage.of(chunk_ids).key


def set_key(chunk_ids: Iterable[str]) -> str:
    """Key of the same antecedents in any order; a chunk placed twice counts twice."""
    return _hash(*((b"s", chunk.encode()) for chunk in sorted(chunk_ids)))


class Chunk(BaseModel):
    """A run of `length` tokens that takes `span` position ids (the same number for text)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    kind: str
    length: int = Field(gt=0)
    span: int = Field(default=0, gt=0)
    media: bool = False
    """Its tokens stand for features of an image: they run through the model together or not at all."""

    @model_validator(mode="before")
    @classmethod
    def _text_spans_its_length(cls, data: dict[str, object]) -> dict[str, object]:
        return {"span": data["length"], **data} if "length" in data and "span" not in data else data


@dataclass(frozen=True)
class _Entry:
    ids: Ids
    fingerprint: str
    modality: bytes

    def same(self, ids: Ids, fingerprint: str, modality: bytes) -> bool:
        return self.modality == modality and self.fingerprint == fingerprint and np.array_equal(self.ids, ids)


class ChunkTable:
    """What every chunk id stands for: 8 bytes a token, each content held once.

    Two contents under one digest get two ids, so a crafted collision costs a re-hash and never hands out
    the wrong chunk. Which of the two keeps the plain digest depends on who came first: a store that outlives
    the table has to compare tokens as well.
    """

    def __init__(self, digest: Digest = digest) -> None:
        self._digest = digest
        self._entries: dict[str, _Entry] = {}

    def knows(self, chunk_id: str) -> bool:
        """Whether an id was given out by `register`."""
        return chunk_id in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def register(
        self,
        ids: npt.ArrayLike,
        kind: str,
        fingerprint: str,
        modality: bytes = b"",
        span: int | None = None,
    ) -> Chunk:
        """The chunk of these tokens ([n] integers). Raises ChunkError when there are none.

        span: position ids it takes; None for text, which takes one a token.
        """
        tokens = np.array(ids, dtype=np.int64).reshape(-1)  # a copy: the caller may reuse its buffer
        if tokens.size == 0:
            raise ChunkError("no tokens", "at least one", "leave empty messages out of the window")
        tokens.setflags(write=False)
        first = self._digest(tokens, fingerprint, modality)
        chunk_id, attempt = first, 0
        while not self._entries.setdefault(chunk_id, _Entry(tokens, fingerprint, modality)).same(
            tokens, fingerprint, modality
        ):
            attempt += 1
            chunk_id = _hash((b"c", first.encode()), (b"n", attempt.to_bytes(8, "little")))
        length = int(tokens.size)
        span = length if span is None else span
        return Chunk(id=chunk_id, kind=kind, length=length, span=span, media=bool(modality))

    def length(self, chunk_id: str) -> int | None:
        """Tokens of a chunk, or None for an id that was never given out here."""
        return self._entries[chunk_id].ids.size if chunk_id in self._entries else None

    def modality(self, chunk_id: str) -> bytes:
        """Digest of what a registered chunk's placeholder tokens stand for; empty for text."""
        return self._entries[chunk_id].modality if chunk_id in self._entries else b""

    def ids(self, chunk_id: str) -> Ids:
        """Tokens of a registered chunk, int64 [n], read-only. Raises ChunkError for an unknown id."""
        if not self.knows(chunk_id):
            raise ChunkError(f"chunk {chunk_id}", "a registered chunk", "register its tokens first")
        return self._entries[chunk_id].ids
