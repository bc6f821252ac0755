"""A model's own chat template: what it writes for a list of messages, and where in that each message stands.

The rendered text is the truth. Templates may put dates and tool lists in front, drop earlier reasoning or
quote a tool's answer; so messages are looked for in the text, and no template is known by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from agentkv.errors import UnsupportedMessage
from agentkv.inputs import Marks
from agentkv.integrations.content import Turn

_FIRST, _ANSWER, _NEXT = "agentkvfirst", "agentkvanswer", "agentkvnext"

_PLAIN = re.compile(r"[ !#-\[\]-~]*")
"""Text that JSON writes as it is."""


@dataclass(frozen=True)
class Stretch:
    """Part of a rendered prompt. turn: index of the message that it belongs to; None for what stands in front
    of all messages, such as a tool's schema."""

    text: str
    turn: int | None


class ChatTemplate:
    """Renders messages with a tokenizer's chat template.

    source: a Jinja template in the place of the tokenizer's own. Raises UnsupportedMessage where there is
    none.
    """

    def __init__(self, tokenizer: Any, source: str | None = None) -> None:
        self.tokenizer, self.source = tokenizer, source
        if source is None and not getattr(tokenizer, "chat_template", None):
            raise UnsupportedMessage(
                got="a model without a chat template",
                expected="one that says how messages are written",
                do="pass chat_template=, a Jinja template such as agentkv.integrations.templates.CHATML",
            )

    def text(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] = (), answer: bool = False
    ) -> str:
        """What the template writes. answer: with what opens an answer. Raises UnsupportedMessage."""
        try:
            return self.tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=list(tools) or None,
                chat_template=self.source,
                add_generation_prompt=answer,
                tokenize=False,
            )
        except Exception as error:  # a jinja template raises what it likes
            raise UnsupportedMessage(
                got=f"messages that the chat template refuses ({error})",
                expected="roles in an order that it knows",
                do="merge neighbours of one role (langchain_core.messages.merge_message_runs), or pass "
                "another chat_template",
            ) from error

    @cached_property
    def marks(self) -> Marks:
        """What opens and what ends an answer."""
        user = {"role": "user", "content": _FIRST}
        plain, opened = self.text([user]), self.text([user], answer=True)
        said = self.text([user, {"role": "assistant", "content": _ANSWER}])
        head = opened.removeprefix(plain) if opened.startswith(plain) else ""
        return Marks(head, said.rpartition(_ANSWER)[2])

    @cached_property
    def openers(self) -> re.Pattern[str] | None:
        """Special tokens that open a message; None where messages are told apart by something else."""
        user, answer = {"role": "user", "content": _FIRST}, {"role": "assistant", "content": _ANSWER}
        text = self.text([user, answer, {"role": "user", "content": _NEXT}])
        last = text.rpartition(_NEXT)[0].rpartition(_ANSWER)[2].removeprefix(self.marks.tail)
        special = sorted(map(str, self.tokenizer.get_added_vocab()), key=len, reverse=True)
        if not special:
            return None
        any_special = re.compile("|".join(map(re.escape, special)))
        heads = [last, self.marks.head, text.partition(_FIRST)[0][-len(last) :] if last else ""]
        found = {match.group() for head in heads if (match := any_special.search(head))}
        found -= {self.tokenizer.bos_token} if len(found) > 1 else set()
        return re.compile("|".join(map(re.escape, sorted(found)))) if found else None

    def stretches(self, turns: Sequence[Turn], tools: Sequence[Any], answer: bool) -> list[Stretch]:
        """The rendered prompt, cut where messages and tool schemas begin; joined they are the prompt but for
        what opens the answer, which `marks.head` has.

        Raises UnsupportedMessage for a message or a tool that the template does not show.
        """
        text = self.text([turn.fields for turn in turns], tools, answer)
        if answer:
            text = self._unopened(text)
        _require_tools(text, tools)
        cuts: dict[int, int | None] = {0: None}
        for start, stop in _schemas(text, tools):
            cuts[start] = cuts[stop] = None
        place = 0
        for number, turn in enumerate(turns):
            start, stop = _found(text, turn, place, number)
            if start < stop:
                cuts[self._opening(text, place, start)] = number
            place = stop
        edges = [*sorted(cuts), len(text)]
        return [Stretch(text[a:b], cuts[a]) for a, b in pairwise(edges) if a < b]

    def _unopened(self, text: str) -> str:
        if not text.endswith(self.marks.head):
            raise UnsupportedMessage(
                got=f"a prompt that ends in {text[-40:]!r}",
                expected=f"{self.marks.head!r}, which opens an answer behind a user's message",
                do="end the list with a message that asks for an answer",
            )
        return text[: len(text) - len(self.marks.head)]

    def _opening(self, text: str, first: int, last: int) -> int:
        """Where the head of a message begins whose content begins at ``last``, behind ``first``."""
        if self.openers is None:
            return last if first else 0
        starts = [match.start() for match in self.openers.finditer(text, first, last)]
        if not starts:
            return last if first else 0
        return starts[-1] if first or len(starts) > 1 else 0  # BOS belongs to the first message


def _found(text: str, turn: Turn, place: int, number: int) -> tuple[int, int]:
    """The first place behind ``place`` where a message's content stands; an empty range for one that shows
    none. Taking the first one finds all messages wherever there is a way to find all."""
    starts = ((text.find(needle, place), needle) for needle in _needles(turn))
    start, needle = min(((start, needle) for start, needle in starts if start >= 0), default=(-1, ""))
    if start >= 0:
        return start, start + len(needle)
    calls = turn.fields.get("tool_calls")
    if calls or (turn.text.strip() and turn.role != "assistant"):  # templates drop earlier reasoning
        raise UnsupportedMessage(
            got=f"message {number} ({turn.role}), which the chat template does not write",
            expected="a template that shows it",
            do="pass another chat_template, such as agentkv.integrations.templates.HERMES for a ChatML model",
        )
    return place, place


def _needles(turn: Turn) -> Iterator[str]:
    """What a template may have made of a message: its text, as it is or quoted, or the tool it calls."""
    content = turn.text.strip()
    if content:
        yield content
        if not _PLAIN.fullmatch(content):
            yield json.dumps(content, ensure_ascii=False)[1:-1]
            yield json.dumps(content)[1:-1]
    else:
        for call in turn.fields.get("tool_calls", ())[:1]:
            yield call["function"]["name"]


def _require_tools(text: str, tools: Sequence[Any]) -> None:
    for tool in tools:
        name = tool["function"]["name"]
        if name not in text:
            raise UnsupportedMessage(
                got=f"the tool {name!r}, which the chat template does not write",
                expected="a template with tools",
                do="pass chat_template=agentkv.integrations.templates.HERMES for a ChatML model, or take a "
                "model that was taught tools",
            )


def _schemas(text: str, tools: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """Where each tool's schema stands, as far as it is written word for word."""
    for tool in tools:
        for indent in (None, 4, 2):
            needle = json.dumps(tool, ensure_ascii=False, indent=indent)
            start = text.find(needle)
            if start >= 0:
                yield start, start + len(needle)
                break
