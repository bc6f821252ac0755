"""A model's own chat template: what it writes for a list of messages, and where in that each message stands.

The rendered text is the truth. Templates may put dates and tool lists in front, drop earlier reasoning or
quote a tool's answer; so messages are looked for in the text, and no template is known by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from agentkv.errors import UnsupportedMessage
from agentkv.inputs import Marks
from agentkv.integrations.content import Turn

_FIRST, _ANSWER, _NEXT = "agentkvfirst", "agentkvanswer", "agentkvnext"

_PLAIN = re.compile(r"[ !#-\[\]-~]*")
"""Text that JSON writes as it is."""

_QUOTED, _QUOTED_IN_ASCII = json.JSONEncoder(ensure_ascii=False).encode, json.JSONEncoder().encode


class Stretch(NamedTuple):
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
            text = self._written([dict(message) for message in messages], list(tools) or None, answer)
        except Exception as error:  # a jinja template raises what it likes
            raise UnsupportedMessage(
                got=f"messages that the chat template refuses ({error})",
                expected="roles in an order that it knows",
                do="merge neighbours of one role (langchain_core.messages.merge_message_runs), or pass "
                "another chat_template",
            ) from error
        _require_characters(text)
        return text

    def _written(self, messages: list[dict[str, Any]], tools: list[Any] | None, answer: bool) -> str:
        if type(self.tokenizer).apply_chat_template is PreTrainedTokenizerBase.apply_chat_template:
            # The same without looking for message objects in what are dicts, which takes as long again.
            rendered, _ = render_jinja_template(
                conversations=[messages],
                tools=tools,
                chat_template=self.tokenizer.get_chat_template(self.source, tools),
                add_generation_prompt=answer,
                **self.tokenizer.special_tokens_map,
            )
            return str(rendered[0])
        text: str = self.tokenizer.apply_chat_template(
            messages,
            tools=tools,
            chat_template=self.source,
            add_generation_prompt=answer,
            tokenize=False,
        )
        return text

    @cached_property
    def marks(self) -> Marks:
        """What opens and what ends an answer."""
        user = {"role": "user", "content": _FIRST}
        plain, opened = self.text([user]), self.text([user], answer=True)
        said = self.text([user, {"role": "assistant", "content": _ANSWER}])
        head = opened.removeprefix(plain) if opened.startswith(plain) else ""
        return Marks(head, said.rpartition(_ANSWER)[2])

    @cached_property
    def _specials(self) -> tuple[str, ...]:
        return tuple(map(str, self.tokenizer.get_added_vocab()))

    @cached_property
    def _every_special(self) -> str:
        return "\n".join(self._specials)

    @cached_property
    def openers(self) -> tuple[str, ...]:
        """Special tokens that open a message; none where messages are told apart by something else."""
        user, answer = {"role": "user", "content": _FIRST}, {"role": "assistant", "content": _ANSWER}
        text = self.text([user, answer, {"role": "user", "content": _NEXT}])
        last = text.rpartition(_NEXT)[0].rpartition(_ANSWER)[2].removeprefix(self.marks.tail)
        heads = [last, self.marks.head, text.partition(_FIRST)[0][-len(last) :] if last else ""]
        special = re.compile(_any(self._specials))
        found = {match.group() for head in heads if (match := special.search(head))}
        found -= {self.tokenizer.bos_token} if len(found) > 1 else set()
        return tuple(sorted(found))

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
        cuts.update((start, number) for number, start in self._starts(text, turns))
        edges = [*sorted(cuts), len(text)]
        return [Stretch(text[a:b], cuts[a]) for a, b in pairwise(edges) if a < b]

    def _starts(self, text: str, turns: Sequence[Turn]) -> list[tuple[int, int]]:
        """Messages that are shown, and where they begin."""
        found = self._opened(text, turns)
        if found is not None:
            return found
        try:
            return self._searched(text, turns, self.marks.tail.strip())
        except UnsupportedMessage:  # not every template ends all answers in one way
            return self._searched(text, turns, "")

    def _opened(self, text: str, turns: Sequence[Turn]) -> list[tuple[int, int]] | None:
        """By what opens them, where there is one opener to each message, and one more at most for what stands
        in front of them; None where that is not so, or a message is not where it would be."""
        openers = list(re.finditer(_any(self.openers), text)) if self.openers else []
        front = len(openers) - len(turns)
        if front not in (0, 1):
            return None
        edges, found = [*(opener.start() for opener in openers), len(text)], list[tuple[int, int]]()
        for number, (turn, opener) in enumerate(zip(turns, openers[front:], strict=True)):
            if _holds(text, _needles(turn), opener.end(), edges[number + front + 1]):
                found.append((number, opener.start() if number or front else 0))  # BOS belongs to the first
            elif not _may_be_dropped(turn):
                return None
        return found

    def _searched(self, text: str, turns: Sequence[Turn], end: str) -> list[tuple[int, int]]:
        """By content: the first place behind the last one. Taking the first one finds all messages wherever
        there is a way to find all. end: of answers; what follows stands behind it, not in the arguments of a
        call. Raises UnsupportedMessage for one that is not found and has to be."""
        place, found = 0, list[tuple[int, int]]()
        for number, turn in enumerate(turns):
            start, stop = self._first(text, _needles(turn), place)
            if start >= 0:
                found.append((number, self._opening(text, place, start)))
                place = stop
                if end and turn.role == "assistant" and (closed := text.find(end, place)) >= 0:
                    place = closed + len(end)
            elif not _may_be_dropped(turn):
                raise UnsupportedMessage(
                    got=f"message {number} ({turn.role}), which the chat template does not write",
                    expected="a template that shows it",
                    do="pass another chat_template, such as agentkv.integrations.templates.HERMES for a "
                    "ChatML model",
                )
        return found

    def _first(self, text: str, needles: Sequence[str], place: int) -> tuple[int, int]:
        """Where the first of these begins and ends behind ``place``, as no part of a special token; -1 where
        there is none."""
        first, stop = -1, len(text)
        for needle in needles:
            if needle in self._every_special:
                either = re.compile(f"(?P<special>{_any(self._specials)})|{re.escape(needle)}")
                hits = (m.start() for m in either.finditer(text, place) if not m["special"] or m[0] == needle)
                found = next(hits, -1)
            else:
                found = text.find(needle, place, stop)
            if found >= 0 and (first < 0 or found < first):
                first, stop = found, found + len(needle)
        return first, stop

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
        start = max((text.rfind(opener, first, last) for opener in self.openers), default=-1)
        if start < 0:
            return last if first else 0
        alone = not first and all(text.find(opener, 0, start) < 0 for opener in self.openers)
        return 0 if alone else start  # BOS belongs to the first message


def _any(texts: Iterable[str]) -> str:
    """A pattern of these, longer ones first; of nothing, where there are none."""
    return "|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)"


def _holds(text: str, needles: Sequence[str], start: int, stop: int) -> bool:
    for needle in needles:
        if text.find(needle, start, stop) >= 0:
            return True
    return not needles


def _may_be_dropped(turn: Turn) -> bool:
    """Templates drop earlier reasoning, and show nothing of an empty message."""
    return not turn.fields.get("tool_calls") and (turn.role == "assistant" or not turn.text.strip())


def _needles(turn: Turn) -> Sequence[str]:
    """What a template may have made of a message: its text, or the tool it calls."""
    content = turn.text.strip()
    if content:
        return _spelt(content)
    calls = turn.fields.get("tool_calls", ())[:1]
    return [spelt for call in calls for spelt in _spelt(call["function"]["name"])]


def _spelt(text: str) -> Sequence[str]:
    """As it is, or quoted."""
    if _PLAIN.fullmatch(text):
        return [text]
    return [text, _QUOTED(text)[1:-1], _QUOTED_IN_ASCII(text)[1:-1]]


def _require_characters(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        near = text[max(0, error.start - 20) : error.end + 20]
        raise UnsupportedMessage(
            got=f"a lone surrogate in a message, a call or a tool: {near!r}",
            expected="text, which UTF-8 has a form of",
            do="decode it with errors='replace' before the model is called",
        ) from error


def _require_tools(text: str, tools: Sequence[Any]) -> None:
    for tool in tools:
        name = tool["function"]["name"]
        if not any(spelt in text for spelt in _spelt(name)):
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
