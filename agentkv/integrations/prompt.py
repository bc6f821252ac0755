"""From a list of LangChain messages to the messages of a window, tokens and images."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from threading import Lock
from typing import TYPE_CHECKING, Any

from langchain_core.messages import BaseMessage

from agentkv.errors import UnsupportedMessage
from agentkv.inputs import Ids, marker_ids
from agentkv.integrations.content import Turn, mark, turns_of
from agentkv.integrations.template import ChatTemplate, Stretch
from agentkv.media import Tokens
from agentkv.showing import Message
from agentkv.vision import prepare

if TYPE_CHECKING:
    from agentkv.engine import Engine

REMEMBERED = 1 << 17
"""Tokens of messages that are kept tokenised, images with their features; the ones unused for longest go."""

_MARKS = re.compile("(" + mark(0).replace("0", r"\d+") + ")")


class Prompts:
    """Message lists as windows take them; equal messages are tokenised and encoded once. Thread-safe."""

    def __init__(self, engine: Engine, template: ChatTemplate) -> None:
        self.engine, self.template = engine, template
        self._made: OrderedDict[tuple[str, ...], Message] = OrderedDict()
        self._tokens = 0
        self._lock = Lock()

    def messages(
        self, messages: Sequence[BaseMessage], tools: Sequence[Any] = (), answer: bool = True
    ) -> list[Message]:
        """The prompt, message by message, without what opens the answer (`ChatTemplate.marks`).

        Raises UnsupportedMessage, and what the model's vision tower raises for an image.
        """
        turns = turns_of(messages)
        images = [picture for turn in turns for picture in turn.images]
        stretches = self.template.stretches(turns, tools, answer)
        _require_images(stretches, len(images))
        return [self._message(stretch, turns, images) for stretch in stretches]

    def remember(self, text: str, parts: Sequence[Ids], kind: str) -> None:
        """A message of this text stands in a window as these tokens: an answer, which its model may have
        spelt otherwise than the tokenizer would."""
        self._keep((kind, text), Message(tuple(map(Tokens, parts)), kind, text))

    def _message(self, stretch: Stretch, turns: Sequence[Turn], images: Sequence[bytes]) -> Message:
        turn = turns[stretch.turn] if stretch.turn is not None else None
        kind = turn.kind if turn is not None else "system"
        parts, names = [stretch.text], [stretch.text]
        shown: dict[str, bytes] = {}
        if images:
            parts = [part for part in _MARKS.split(stretch.text) if part]
            shown = {part: images[int(part[1:-1])] for part in parts if _MARKS.fullmatch(part)}
            names = [_name(shown[part]) if part in shown else part for part in parts]
        key = (kind, *names)
        with self._lock:
            made = self._made.get(key)
            if made is not None:
                self._made.move_to_end(key)
        if made is None:
            pieces = tuple(piece for part in parts for piece in self._pieces(part, shown.get(part)))
            preview = turn.text if turn is not None else stretch.text
            made = self._keep(key, Message(pieces, kind, _MARKS.sub("[image]", preview)))
        if turn is None or (made.label, made.pin, made.order_free) == turn.marks:
            return made
        label, pin, order_free = turn.marks
        marked = replace(made, label=label, pin=pin, order_free=order_free)
        marked.__dict__["key"] = made.key  # what it says is the same
        return self._keep(key, marked)

    def _pieces(self, part: str, image: bytes | None) -> Iterator[Tokens]:
        if image is not None:
            yield from prepare(image, self.engine.tower)
        elif len(ids := marker_ids(self.engine.tokenizer, part)):
            yield Tokens(ids)

    def _keep(self, key: tuple[str, ...], message: Message) -> Message:
        with self._lock:
            old = self._made.pop(key, None)
            self._made[key] = message
            self._tokens += message.tokens - (old.tokens if old else 0)
            while self._tokens > REMEMBERED and len(self._made) > 1:
                self._tokens -= self._made.popitem(last=False)[1].tokens
        return message


def _require_images(stretches: Sequence[Stretch], count: int) -> None:
    """Every image once. A template may leave out or quote the text that marks stand in, and what a model
    writes into a call may look like one."""
    shown = [found for stretch in stretches for found in _MARKS.findall(stretch.text)] if count else []
    if sorted(shown) != sorted(mark(number) for number in range(count)):
        raise UnsupportedMessage(
            got=f"a rendered prompt with {len(shown)} marks of images for {count} images",
            expected="each image once",
            do="pass another chat_template, and no private-use character U+E0F0 in a call's arguments",
        )


def _name(image: bytes) -> str:
    """Encoded bytes under a digest that nobody can collide."""
    return "\ue0f0" + blake2b(image, digest_size=20).hexdigest()
