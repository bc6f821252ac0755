"""Cards: what an agent can read of a chunk that is not in its window, to find what to recall."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from agentkv.handles import Handle

FIRST_WORDS = 400
"""Characters of a chunk's text that a card shows."""


class ChunkCard(BaseModel):
    """kind, words: what the chunk is, and how it begins. thread: of the conversation it is from. handle: its
    `Handle.id`, for a recall. tokens: its length. tags: anything else it should be found by."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    words: str = Field(max_length=FIRST_WORDS)
    thread: str = ""
    handle: int | None = None
    tokens: int | None = Field(default=None, ge=0)
    tags: list[str] = []

    def value(self) -> dict[str, Any]:
        """What an `AgentKVStore` keeps of it."""
        return self.model_dump(mode="json")


def card_of(handle: Handle, text: str = "", thread: str = "", tags: tuple[str, ...] = ()) -> ChunkCard:
    """The card of a message. text: all of it, of which the first words are shown; the handle's preview
    without."""
    words = " ".join(text.split())[:FIRST_WORDS] or handle.preview
    return ChunkCard(
        kind=handle.kind, words=words, thread=thread, handle=handle.id, tokens=handle.tokens, tags=list(tags)
    )
