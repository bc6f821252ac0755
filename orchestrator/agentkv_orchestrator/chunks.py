"""Chunks: runs of tokens with one identity.

A chunk's id is a digest of its token ids, of the pixels or samples behind them and of the model that
reads them.
"""

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from .identity import digest_of
from .lineage import Lineage

Ids = npt.NDArray[np.int64]
Digest = Callable[[Ids, str, bytes], str]


def digest(ids: Ids, fingerprint: str, modality: bytes = b"") -> str:
    """Identity of a run of tokens: 40 hex characters.

    ids: int64 [n]; fingerprint: model and tokenizer; modality: digest of what placeholder tokens stand for.
    """
    tokens = np.ascontiguousarray(ids, dtype="<i8").tobytes()
    fields = (b"tokens", tokens), (b"model", fingerprint.encode()), (b"modality", modality)
    return digest_of(b"agentkv chunk", *fields)


def context_key(chunk_ids: Iterable[str]) -> str:
    """Key of an ordered list of antecedents."""
    return Lineage.of(chunk_ids).key


def set_key(chunk_ids: Iterable[str]) -> str:
    """Key of the same antecedents in any order; a chunk placed twice counts twice."""
    return digest_of(b"agentkv set", *((b"chunk", chunk.encode()) for chunk in sorted(chunk_ids)))


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
    def _text_spans_its_length(cls, data: object) -> object:
        if isinstance(data, dict) and "length" in data and "span" not in data:
            return {"span": data["length"], **data}
        return data
