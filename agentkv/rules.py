"""What an edit may not do, each with what was got, what was expected and what to do."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from agentkv_orchestrator.trace import ROLES

from agentkv.errors import (
    AlreadyEvicted,
    EmptyChunk,
    ForeignChunk,
    InvalidInput,
    PinnedChunk,
    TooLong,
)
from agentkv.handles import Content, Entry, Handle
from agentkv.inputs import Ids
from agentkv.media import Tokens
from agentkv.vision import VisionTower, require_text


def known(content: Content, handle: Handle) -> Entry:
    """The entry of ``handle``. Raises InvalidInput for anything but a handle, ForeignChunk for another
    window's, and for one of more messages than a window remembers."""
    if not isinstance(handle, Handle):
        raise InvalidInput(
            got=f"{type(handle).__name__} as a handle", expected="what append returned", do="keep the handle"
        )
    entry = content.get(handle.id)
    if entry is None or entry.handle is not handle:
        raise ForeignChunk(
            got=f"{handle!r}, which this window does not know",
            expected="a handle of this window or the one it was forked from, not yet forgotten",
            do="append the content to this window",
        )
    return entry


def live(content: Content, handle: Handle) -> Entry:
    """The entry of a handle that is in the window. Raises AlreadyEvicted as well."""
    entry = known(content, handle)
    if handle.id not in content.order:
        raise AlreadyEvicted(
            got=f"{handle!r}, which was evicted", expected="a message in the window", do="recall it"
        )
    return entry


def evicted(content: Content, handle: Handle) -> Entry:
    """The entry of a handle that is not in the window now."""
    entry = known(content, handle)
    if handle.id in content.order:
        raise InvalidInput(
            got=f"{handle!r}, which is in the window",
            expected="an evicted message",
            do="use move to change its place",
        )
    return entry


def unpinned(entry: Entry) -> None:
    if entry.pinned:
        raise PinnedChunk(
            got=f"an eviction of {entry.handle!r}, which is pinned",
            expected="an unpinned message",
            do="call pin(handle, on=False) first",
        )


def kind(name: str) -> None:
    if not isinstance(name, str):
        raise InvalidInput(
            got=f"kind={name!r}", expected="a word such as user, note or document", do="pass a str"
        )


def order_free(kind: str, pinned: bool) -> None:
    if pinned or kind in ROLES:
        raise InvalidInput(
            got=f"order_free for a message that is pinned or of kind {kind!r}",
            expected="an unpinned document, note, tool result or image",
            do="leave order_free out: the place of this message is part of what it says",
        )


def unordered_clip(order_free: bool) -> None:
    if order_free:
        raise InvalidInput(
            got="order_free for a video", expected="frames in their order", do="leave order_free out"
        )


def text_only(entry: Entry) -> None:
    if entry.media:
        raise InvalidInput(
            got=f"another text for {entry.handle!r}, which shows an image",
            expected="a message of text",
            do="evict it and append the new one in its place with before=",
        )


def fits(tokens: int, limit: int) -> None:
    if tokens > limit:
        raise TooLong(
            got=f"a window of {tokens} tokens",
            expected=f"at most {limit}",
            do="evict or slide first, or split the text",
        )


def pieces(pieces: Iterable[Tokens], vocabulary: int, tower: VisionTower) -> None:
    """Token ids of this vocabulary, and no placeholder of an image outside of images."""
    for ids, media in pieces:
        token_ids(ids, vocabulary)
        if media is None:
            require_text(ids, tower)


def token_ids(ids: Ids, vocabulary: int) -> None:
    if not isinstance(ids, np.ndarray) or ids.dtype != np.int64 or ids.ndim != 1:
        raise InvalidInput(
            got=f"{getattr(ids, 'dtype', type(ids).__name__)} {getattr(ids, 'shape', '')}",
            expected="int64 ids [T]",
            do="pass numpy.asarray(ids, dtype=numpy.int64)",
        )
    if ids.size == 0:
        raise EmptyChunk(got="no tokens", expected="at least one", do="leave the message out")
    if ids.min() < 0 or ids.max() >= vocabulary:
        raise InvalidInput(
            got=f"ids from {ids.min()} to {ids.max()}",
            expected=f"0 to {vocabulary - 1}",
            do="tokenise with this model's tokenizer",
        )


def boundaries(edges: Iterable[int], size: int) -> list[int]:
    """Those edges as numbers. Raises InvalidInput for any that is not inside a text of ``size`` tokens."""
    found = [int(edge) for edge in edges]
    outside = [edge for edge in found if not 0 <= edge <= size]
    if outside:
        raise InvalidInput(
            got=f"a boundary at token {outside[0]}", expected=f"0 to {size}", do="count tokens of this prompt"
        )
    return found
