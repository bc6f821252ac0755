"""What may leave a message list, and the cards that stand in its place.

An image block, or what a tool returned, can be evicted. It is known by what it says and bears a number; equal
ones share it. A card is a line of text, so a list that loses one at a time differs in a few tokens each time.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolMessage

from agentkv.integrations.answering import METADATA

RECALL = "recall_chunk"
"""Name of the tool that shows something again. Its own answers are not evicted; they run out."""

SHORT = 80
"""Results of fewer characters stay: a card is about as long."""

Block = str | dict[str, Any]

_NOT_SAID = frozenset({"id", "cache_control", "extras", "index"})
"""Keys of a block that the model is not shown."""


@dataclass(frozen=True)
class Evictable:
    """An image or a tool's result, where it stands in a list.

    place: index of its message. block: index of its block there; None: all of the message's content. key:
    digest of what it says. noun: what a card calls it.
    """

    place: int
    block: int | None
    key: str
    noun: str
    content: tuple[Block, ...]
    pinned: bool

    @property
    def text(self) -> str:
        """Its words."""
        return " ".join(b if isinstance(b, str) else str(b.get("text", "")) for b in self.content).strip()

    def card(self, number: int, recall: bool) -> str:
        """What stands in its place."""
        way = f"; {RECALL}('{number}') shows it again" if recall else ""
        return f"[{self.noun} {number}: evicted{way}]"


def images(messages: Sequence[BaseMessage]) -> Iterator[Evictable]:
    """Every image block, in order."""
    for place, message in enumerate(messages):
        if isinstance(message.content, str) or _recalls(message):
            continue
        for index, block in enumerate(message.content):
            if _is_image(block):
                yield Evictable(place, index, _key([block]), "image", (block,), _pinned(message, block))


def results(messages: Sequence[BaseMessage], exclude: Iterable[str] = ()) -> Iterator[Evictable]:
    """What tools returned, in order, but for those of these names and those that a card would not shorten."""
    names = frozenset(exclude)
    for place, message in enumerate(messages):
        if not isinstance(message, ToolMessage) or _recalls(message) or message.name in names:
            continue
        content = [message.content] if isinstance(message.content, str) else message.content
        noun = f"result of {message.name}" if message.name else "result"
        item = Evictable(place, None, _key([noun, *content]), noun, tuple(content), pinned(message))
        if len(item.text) >= SHORT or any(_is_image(block) for block in content):
            yield item


def oldest(items: Iterable[Evictable], keep: int | None) -> list[Evictable]:
    """All but the newest ``keep`` of those that are not pinned; none where ``keep`` is None."""
    loose = [item for item in items if not item.pinned]
    return [] if keep is None else loose[: max(len(loose) - keep, 0)]


def numbered(items: Iterable[Evictable], known: Mapping[str, int]) -> dict[str, int]:
    """Numbers for those that have none yet, by key, from 1 on."""
    fresh, last = dict[str, int](), max(known.values(), default=0)
    for item in items:
        if item.key not in known and item.key not in fresh:
            fresh[item.key] = last + len(fresh) + 1
    return fresh


class SortedOut(NamedTuple):
    """fresh: numbers that are new, by key. there: all that may get a card, by number. gone: what has one now,
    with its number."""

    fresh: dict[str, int]
    there: dict[int, Evictable]
    gone: list[tuple[int, Evictable]]


def sorted_out(
    messages: Sequence[BaseMessage],
    keep_images: int | None,
    keep_results: int | None,
    exclude: Iterable[str],
    known: Mapping[str, int],
) -> SortedOut:
    """What leaves a list that keeps so many of the newest; None: all of a kind, without numbers."""
    pictures = list(images(messages)) if keep_images is not None else []
    texts = list(results(messages, exclude)) if keep_results is not None else []
    there = sorted([*pictures, *texts], key=lambda item: (item.place, item.block is None))
    fresh = numbered(there, known)
    numbers = {**known, **fresh}
    gone = [*oldest(pictures, keep_images), *oldest(texts, keep_results)]
    return SortedOut(
        fresh,
        {numbers[item.key]: item for item in there},
        [(numbers[item.key], item) for item in gone],
    )


def with_cards(
    messages: Sequence[AnyMessage], gone: Iterable[tuple[int, Evictable]], recall: bool
) -> list[AnyMessage]:
    """The list with cards where these stand, by their numbers; other messages are the same objects. recall:
    whether the model has the tool to get them back."""
    found, by_place = list(messages), defaultdict[int, list[tuple[int, Evictable]]](list)
    for number, item in sorted(gone, key=lambda one: one[1].block is not None):  # a result before its images
        by_place[item.place].append((number, item))
    for place, items in by_place.items():
        content: Any = list(messages[place].content)
        for number, item in items:
            card = item.card(number, recall)
            if item.block is None:
                content = card
                break
            content[item.block] = {"type": "text", "text": card}
        found[place] = messages[place].model_copy(update={"content": content})
    return found


def newest_handle(messages: Sequence[Any]) -> str | None:
    """The window that the last answer of a list was made in."""
    for message in reversed(messages):
        if isinstance(message, AIMessage):
            said = message.response_metadata.get(METADATA)
            if isinstance(said, dict) and "window" in said:
                return str(said["window"])
    return None


def pinned(message: BaseMessage) -> bool:
    """Whether it, or a block of it, bears ``cache_control``."""
    blocks = [message.content] if isinstance(message.content, str) else message.content
    return any(_pinned(message, block) for block in blocks)


def _recalls(message: BaseMessage) -> bool:
    return isinstance(message, ToolMessage) and message.name == RECALL


def _is_image(block: Block) -> bool:
    return isinstance(block, dict) and block.get("type") in ("image", "image_url")


def _pinned(message: BaseMessage, block: Block) -> bool:
    asked = isinstance(block, dict) and "cache_control" in block
    return asked or "cache_control" in message.additional_kwargs


def _key(blocks: Sequence[Block]) -> str:
    """128 bits over what the model is shown."""
    found = blake2b(digest_size=16)
    for block in blocks:
        said = {"text": block} if isinstance(block, str) else block
        for name in sorted(said.keys() - _NOT_SAID):
            value = said[name]
            # An image is long: no JSON of it.
            text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=repr)
            for part in (name.encode(), text.encode(errors="surrogatepass")):
                found.update(len(part).to_bytes(8, "big") + part)
    return found.hexdigest()
