"""Errors of the runtime. Each carries what it got, what it expected and what to do about it."""

from __future__ import annotations

from typing import Any


class AgentKVError(Exception):
    """Base of every error agentkv raises.

    `got`, `expected` and `do` are kept as fields, so that a caller can show or log them apart.
    """

    def __init__(self, got: object, expected: object, do: str) -> None:
        super().__init__(got, expected, do)
        self.got = got
        self.expected = expected
        self.do = do

    def __str__(self) -> str:
        return f"got {self.got}; expected {self.expected}; do {self.do}"


class InvalidInput(AgentKVError, ValueError):
    """An argument that no call accepts: wrong type, shape, dtype or value."""


class EmptyChunk(InvalidInput):
    """A chunk without a token."""


class BadRank(InvalidInput):
    """A patch rank outside what the chunk and the layer allow."""


class TooLong(InvalidInput):
    """A chunk or a window that needs more positions than the model was built for."""


class UnsupportedMessage(InvalidInput):
    """A message, a block or a tool call that the model's chat template cannot show."""


class ForeignChunk(AgentKVError):
    """A chunk handle that belongs to another window or another engine."""


class PinnedChunk(AgentKVError):
    """An edit that would remove a pinned chunk."""


class AlreadyEvicted(AgentKVError):
    """An edit of a chunk that is not in the window any more."""


class NothingStored(AgentKVError):
    """A recall of a chunk that no store holds. keys: what was looked for, as `agentkv.store.base.Key`."""

    def __init__(self, got: object, expected: object, do: str, keys: tuple[Any, ...] = ()) -> None:
        super().__init__(got, expected, do)
        self.keys = keys


class UnsupportedModel(AgentKVError):
    """A model whose cache agentkv does not know how to move."""


class FingerprintMismatch(AgentKVError):
    """Stored KV that another model, or another tokenizer, made."""


class BadStore(AgentKVError):
    """A folder or a server that cannot be used as a store: not writable, something else, another version."""


class NotJSON(InvalidInput):
    """A value that JSON would not give back as it went in."""


class StoreFull(AgentKVError):
    """One item more than an agent's store may hold, or than the store behind it has room for."""


class NonFinite(AgentKVError):
    """NaN or infinity came out of the model."""


class OutOfMemory(AgentKVError):
    """Memory ran out during an edit; the window is as it was before the edit."""


class ModelNotFound(AgentKVError):
    """A path without a model, or a hub id that cannot be fetched."""


class BrokenModelCache(AgentKVError):
    """Files of the embedded model that are damaged and could not be rebuilt."""


class BadCorrection(AgentKVError):
    """A file of corrections that is damaged, was written for somebody else, or cannot be written."""


class ClosedError(AgentKVError):
    """A call on a window, a store or an engine that was closed."""


class Busy(AgentKVError):
    """An edit in the middle of an answer that is still being streamed."""
