"""What the chunks that a store holds stand for: texts that an engine was not shown, and can find parts of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from agentkv.inputs import Ids
from agentkv.store.base import Store
from agentkv.store.key import Kind

_SLICED: tuple[Kind, ...] = ("canonical", "conditioned")
"""Of what is stored under these a part can be taken."""


def known_texts(store: Store, fingerprint: str, most: int, knows: Callable[[str], bool]) -> Iterator[Ids]:
    """Token ids ``[T]`` of stored chunks of one model, those used last first; no tensor is read.

    most: entries whose ids are read. knows: whether a chunk's ids are known already.
    """
    if not most:
        return
    listed = (key for key in reversed(tuple(store.keys(""))) if key.kind in _SLICED)
    fresh = {key.chunk: key for key in listed if not knows(key.chunk)}
    for origin in store.origins(list(islice(fresh.values(), most))).values():
        if origin.fingerprint == fingerprint and not origin.modality:
            yield origin.ids
