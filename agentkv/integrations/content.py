"""From LangChain messages to what a chat template takes: roles, text with marks for images, calls."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from pydantic import BaseModel, ConfigDict, ValidationError

from agentkv.errors import UnsupportedMessage

_ROLES: Sequence[tuple[type[BaseMessage], str]] = (
    (SystemMessage, "system"),
    (HumanMessage, "user"),
    (AIMessage, "assistant"),
    (ToolMessage, "tool"),
    (FunctionMessage, "tool"),
)

_MARK = "\ue0f0{}\ue0f1"
"""Stands for the n-th image of a prompt while a template renders it: private-use characters, which no
tokenizer gives a meaning to."""


class Hints(BaseModel):
    """What the owner of a message says of it. order_free: its neighbours that are so too may change places
    with it, so that KV stays valid; such a message is a document where no other kind is given."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str | None = None
    order_free: bool = False

    @classmethod
    def of(cls, message: BaseMessage) -> Hints:
        given = message.additional_kwargs.get("agentkv")
        if given is None:
            return _NO_HINTS
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise _Refused(
                f"additional_kwargs['agentkv']={given!r}", "order_free (a bool), kind (a word)"
            ) from error


_NO_HINTS = Hints()


class Turn(NamedTuple):
    """One message as the template takes it.

    fields: role, content and what else there is. images: encoded pictures, in the order of their marks in the
    content. label: the message's id. pin: whether a block asks to be kept (``cache_control``). hints: what
    ``additional_kwargs["agentkv"]`` says.
    """

    fields: Mapping[str, Any]
    images: tuple[bytes, ...]
    label: str
    pin: bool
    hints: Hints

    @property
    def role(self) -> str:
        return str(self.fields["role"])

    @property
    def text(self) -> str:
        return str(self.fields["content"])

    @property
    def marks(self) -> tuple[str, bool, bool]:
        """What a window is told besides its content: label, pin, order_free."""
        return self.label, self.pin, self.hints.order_free

    @property
    def kind(self) -> str:
        """What the window calls it."""
        if self.hints.kind or self.hints.order_free:
            return self.hints.kind or "document"
        return self.role if self.role in ("system", "user", "assistant", "tool") else "user"


def mark(number: int) -> str:
    """The text that stands for an image."""
    return _MARK.format(number)


def turns_of(messages: Sequence[BaseMessage]) -> list[Turn]:
    """Messages for the template, images numbered through. Raises UnsupportedMessage, which says what block
    of what message it was."""
    found: list[Turn] = []
    images = 0
    for place, message in enumerate(messages):
        try:
            turn = _turn(message, images)
        except _Refused as refused:
            raise UnsupportedMessage(
                got=f"message {place} ({message.type}) with {refused.got}",
                expected=refused.expected,
                do="convert or drop it before the model is called",
            ) from refused
        images += len(turn.images)
        found.append(turn)
    return found


class _Refused(Exception):
    """Something in a message that cannot be shown."""

    def __init__(self, got: str, expected: str) -> None:
        super().__init__(got)
        self.got, self.expected = got, expected


def _turn(message: BaseMessage, images: int) -> Turn:
    content, pin = message.content, "cache_control" in message.additional_kwargs
    text: list[str] = []
    pictures: list[bytes] = []
    for block in (content,) if isinstance(content, str) else content:
        if isinstance(block, dict):
            pin = pin or "cache_control" in block
        found = _block(block)
        if isinstance(found, bytes):
            text.append(mark(images + len(pictures)))
            pictures.append(found)
        else:
            if _MARK[0] in found:
                raise _Refused("the private-use character U+E0F0", "text without it")
            text.append(found)
    fields = _fields(message, "".join(text))
    return Turn(fields, tuple(pictures), message.id or "", pin, Hints.of(message))


class _Kind(NamedTuple):
    """What messages of a class have. role: None where each says its own."""

    role: str | None
    answers: bool
    calls: bool


@cache
def _kind(kind: type[BaseMessage]) -> _Kind | None:
    """None for a class that nothing is known of."""
    if issubclass(kind, ChatMessage):
        return _Kind(None, False, False)
    role = next((role for base, role in _ROLES if issubclass(kind, base)), None)
    return _Kind(role, issubclass(kind, ToolMessage), issubclass(kind, AIMessage)) if role else None


def _fields(message: Any, content: str) -> dict[str, Any]:
    """Role and content, an answer's calls, and what a tool's answer belongs to."""
    kind = _kind(message.__class__)
    if kind is None:
        raise _Refused(f"the class {type(message).__name__}", "a system, human, ai, tool or chat message")
    fields: dict[str, Any] = {"role": kind.role or message.role, "content": content}
    if message.name:
        fields["name"] = message.name
    if kind.answers:
        fields["tool_call_id"] = message.tool_call_id
    elif kind.calls and message.tool_calls:
        fields["tool_calls"] = [
            {
                "type": "function",
                "id": call["id"] or "",
                "function": {"name": call["name"], "arguments": call["args"]},
            }
            for call in message.tool_calls
        ]
    return fields


def _block(block: str | Mapping[str, Any]) -> str | bytes:
    """Text, or an encoded image. "" for what a prompt does not show."""
    if isinstance(block, str):
        return block
    kind = block.get("type")
    if kind == "text" or (kind is None and "text" in block):
        if not isinstance(text := block.get("text"), str):
            raise _Refused(f"a text block whose text is {text!r}", "a str")
        return text
    if kind in ("tool_use", "tool_call", "tool_call_chunk", "function_call", "reasoning", "thinking"):
        return ""  # calls are told by the message; templates show no reasoning of earlier turns
    if kind == "json":
        try:
            return json.dumps(block["json"], ensure_ascii=False)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            shown = f"a json block that is none ({type(error).__name__}: {error})"
            raise _Refused(shown, "what JSON can write, under 'json'") from error
    if kind in ("image", "image_url"):
        return _image(block)
    raise _Refused(f"a block of type {kind!r}", "text and image blocks")


def _image(block: Mapping[str, Any]) -> bytes:
    """Bytes of an image block in LangChain's, OpenAI's or Anthropic's form."""
    source = block.get("source")
    data = block.get("base64") or block.get("data")
    if isinstance(source, Mapping):
        data = source.get("data")
    elif block.get("source_type") == "base64":
        data = block.get("data")
    url = block.get("url") or block.get("image_url")
    if isinstance(url, Mapping):
        url = url.get("url")
    if data is None and isinstance(url, str) and url.startswith("data:"):
        data = url.partition(";base64,")[2]
    if not isinstance(data, str | bytes) or not data:
        shown = f"the URL {str(url)[:60]!r}" if url else f"the keys {sorted(block)}"
        raise _Refused(f"an image block that has {shown}", "base64 data, or a data: URL with base64")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _Refused(f"an image that is no base64 ({error})", "base64 data") from error
