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

SINK_TOKENS = 32
"""The first tokens of a sequence take much of its attention, whatever they are. So many stand in front of
canonicals, and are computed where a prompt opens otherwise than before (Irminsul's first-chunk carve-out)."""

ROLES = {"system": "system", "user": "user", "assistant": "assistant"}
"""Kinds that are chat roles; every other kind (document, note, tool, ...) is shown to the model as a user
message."""

_BODY, _OTHER = "\u2603body\u2603", "\u2603other\u2603"


@dataclass(frozen=True)
class Marks:
    """What a chat template puts around a message of one role."""

    head: str
    tail: str


@dataclass(frozen=True)
class Template:
    """Marks by role; empty ones for a model without a chat template."""

    marks_of: dict[str, Marks]
    stop_ids: frozenset[int]

    def marks(self, kind: str) -> Marks:
        return self.marks_of[ROLES.get(kind, "user")]

    def render(self, text: str, kind: str) -> str:
        """`text` inside the markers of its role."""
        marks = self.marks(kind)
        return f"{marks.head}{text}{marks.tail}"


def template_of(tokenizer: Any) -> Template:
    """The markers that `tokenizer`'s chat template writes around one message of each role.

    Found by rendering marker texts, so that no model's template is known by name here. A template that
    cannot be cut into marks (it rewrites messages) raises InvalidInput.
    """
    eos = {tokenizer.eos_token_id} - {None}
    if not getattr(tokenizer, "chat_template", None):
        return Template({role: Marks("", "") for role in ROLES}, frozenset(eos))
    marks = {role: _marks(tokenizer, role) for role in ROLES}
    end = tokenizer(marks["assistant"].tail.strip(), add_special_tokens=False)["input_ids"][:1]
    return Template(marks, frozenset(eos | set(end)))


def _marks(tokenizer: Any, role: str) -> Marks:
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
    return Marks(head, tail)


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
