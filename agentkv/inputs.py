"""From text to token ids: message markers of the model's own chat template, tokenised piece by piece.

A piece of the window is tokenised alone, so that its ids never depend on its neighbours; the window is the
concatenation. That is what re-prefill, audit and every benchmark run over, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentkv.errors import EmptyChunk, InvalidInput

Ids = NDArray[np.int64]

ROLES = {"system": "system", "user": "user", "assistant": "assistant"}
"""Kinds that are chat roles; every other kind (document, note, tool, ...) is shown to the model as a user
message."""

_BODY, _OTHER = "\u2603body\u2603", "\u2603other\u2603"


@dataclass(frozen=True)
class Frame:
    """What a chat template puts around a message of one role."""

    head: str
    tail: str


@dataclass(frozen=True)
class Template:
    """Message frames by role; empty frames for a model without a chat template."""

    frames: dict[str, Frame]
    stop_ids: frozenset[int]

    def frame(self, kind: str) -> Frame:
        return self.frames[ROLES.get(kind, "user")]

    def render(self, text: str, kind: str) -> str:
        """`text` inside the markers of its role."""
        frame = self.frame(kind)
        return f"{frame.head}{text}{frame.tail}"


def template_of(tokenizer: Any) -> Template:
    """The markers that `tokenizer`'s chat template writes around one message of each role.

    Found by rendering marker texts, so that no model's template is known by name here. A template that
    cannot be cut into frames (it rewrites messages) raises InvalidInput.
    """
    eos = {tokenizer.eos_token_id} - {None}
    if not getattr(tokenizer, "chat_template", None):
        return Template({role: Frame("", "") for role in ROLES}, frozenset(eos))
    frames = {role: _frame(tokenizer, role) for role in ROLES}
    end = tokenizer(frames["assistant"].tail.strip(), add_special_tokens=False)["input_ids"][:1]
    return Template(frames, frozenset(eos | set(end)))


def _frame(tokenizer: Any, role: str) -> Frame:
    """The text between a message in front and the body, and between the body and a message behind."""
    before = {"role": "system", "content": _OTHER} if role != "system" else None
    if role == "assistant":
        lead = [before, {"role": "user", "content": _OTHER}]
    else:
        lead = [before] if before else []
    try:
        front = tokenizer.apply_chat_template(lead, tokenize=False) if lead else ""
        text = tokenizer.apply_chat_template([*lead, {"role": role, "content": _BODY}], tokenize=False)
    except Exception as error:  # a jinja template raises what it likes
        raise InvalidInput(
            got=f"a chat template that cannot render a {role} message ({error})",
            expected="a template with system, user and assistant messages",
            do="pass chat_template=False to the engine to append plain text",
        ) from error
    if not text.startswith(front) or text.count(_BODY) != 1:
        raise InvalidInput(
            got="a chat template that rewrites earlier messages",
            expected="a template that only appends",
            do="pass chat_template=False to the engine to append plain text",
        )
    head, tail = text[len(front) :].split(_BODY)
    return Frame(head, tail)


def marker_ids(tokenizer: Any, text: str) -> Ids:
    """int64 ids ``[T]`` of a template's marker; none for an empty one."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"] if text else []
    return np.asarray(ids, dtype=np.int64)


def tokenise(tokenizer: Any, text: str) -> Ids:
    """int64 ids of ``text``, no special tokens added. Raises EmptyChunk for text without a token."""
    if not isinstance(text, str):
        raise InvalidInput(
            got=type(text).__name__, expected="text", do="pass a str (images come with other models)"
        )
    ids = np.asarray(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], dtype=np.int64)
    if ids.size == 0:
        raise EmptyChunk(
            got=f"text {text[:40]!r} without a token", expected="at least one token", do="skip it"
        )
    return ids
