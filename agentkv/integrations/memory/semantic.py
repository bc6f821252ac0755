"""Ranking by meaning, with an embedding model of the caller's (langgraph's IndexConfig)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from langchain_core.embeddings import Embeddings
from langgraph.store.base import IndexConfig, ensure_embeddings

from agentkv.errors import InvalidInput
from agentkv.integrations.memory.items import WHOLE

_KEYS = {"dims", "embed", "fields"}


class Index:
    """config: dims, embed, and the paths that are embedded by default (fields). Raises InvalidInput for
    anything else in it, and for less."""

    def __init__(self, config: IndexConfig) -> None:
        given: Mapping[str, Any] = config
        dims, embed = given.get("dims"), given.get("embed")
        if set(given) - _KEYS or embed is None or type(dims) is not int or dims < 1:
            raise InvalidInput(
                got=f"an index with {sorted(given)} and dims {dims!r}",
                expected="embed, dims of at least 1, and fields or not",
                do="pass langgraph's IndexConfig, or no index for a search by words",
            )
        self.dims = dims
        self.fields: Sequence[str] = tuple(given.get("fields") or (WHOLE,))
        self.embeddings: Embeddings = ensure_embeddings(embed)

    def checked(self, texts: Sequence[str], vectors: Sequence[Sequence[float]]) -> dict[str, list[float]]:
        """What the model gave, by text. Raises InvalidInput where it is not a finite vector of ``dims`` for
        each."""
        found = {text: [float(x) for x in vector] for text, vector in zip(texts, vectors, strict=False)}
        whole = len(vectors) == len(texts)
        if not whole or any(len(v) != self.dims or not np.isfinite(v).all() for v in found.values()):
            raise InvalidInput(
                got=f"{len(vectors)} vectors of {sorted({len(v) for v in found.values()})} numbers",
                expected=f"{len(texts)} finite vectors of {self.dims}",
                do="set dims to what the embedding model gives",
            )
        return found


def similarity(query: Sequence[float], vectors: Sequence[Sequence[float]]) -> float | None:
    """The largest cosine to one of the vectors; None without any, 0 to one of length 0."""
    if not vectors:
        return None
    a, b = np.asarray(query), np.asarray(vectors)
    norms = np.linalg.norm(a) * np.linalg.norm(b, axis=1)
    return float(np.divide(b @ a, norms, out=np.zeros(len(b)), where=norms > 0).max())
