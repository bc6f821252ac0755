"""Tool calls as a model's own chat template writes them: how to read them, and how to make a model write one.

The template is asked to write a call with known names; what stands around the names is the format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from langchain_core.messages.tool import InvalidToolCall, ToolCall, invalid_tool_call, tool_call

from agentkv.errors import UnsupportedMessage
from agentkv.integrations.template import ChatTemplate

_NAME, _KEY, _VALUE, _ID = "agentkvname", "agentkvkey", "agentkvvalue", "agentkv00"
_ASKED = {"role": "user", "content": "agentkvfirst"}


@dataclass(frozen=True)
class Format:
    """One call is ``opening + name + middle + arguments + closing``, the arguments as JSON.

    opening ends with the JSON up to the name; ``trigger`` is what stands in front of that JSON ("" where an
    answer that is a JSON object is a call).
    """

    opening: str
    middle: str
    closing: str
    trigger: str
    name_key: str
    arguments_key: str

    @classmethod
    def of(cls, template: ChatTemplate) -> Format:
        """Raises UnsupportedMessage for a template that writes no calls, or not as JSON."""
        call = {"type": "function", "id": _ID, "function": {"name": _NAME, "arguments": {_KEY: _VALUE}}}
        tool = {
            "type": "function",
            "function": {
                "name": _NAME,
                "description": "",
                "parameters": {"type": "object", "properties": {}},
            },
        }
        message = {"role": "assistant", "content": "", "tool_calls": [call]}
        asked = template.text([_ASKED], [tool], answer=True)
        text = template.text([_ASKED, message], [tool])
        said = text[len(asked) :] if text.startswith(asked) else text.rpartition(_ASKED["content"])[2]
        found = re.search(
            rf'(?P<json>[\[{{\s]*"(?P<name>\w+)": ?")?{_NAME}(?P<middle>", ?"(?P<args>\w+)": ?){{"{_KEY}": ?'
            rf'"{_VALUE}"}}',
            said,
        )
        if found is None or found["json"] is None:
            raise UnsupportedMessage(
                got="a chat template that writes no tool calls as JSON",
                expected="one that does",
                do="pass chat_template=agentkv.integrations.templates.HERMES for a ChatML model",
            )
        head = said[: found.start("json")]
        closing = said[found.end() :].removesuffix(template.marks.tail)
        return cls(
            head + found["json"], found["middle"], closing, head.lstrip(), found["name"], found["args"]
        )

    def named(self, call_id: str) -> str:
        """What ends a call of this id; most formats do not write it."""
        return self.closing.replace(_ID, call_id)


@dataclass(frozen=True)
class Said:
    """An answer, read: what is text, and its calls."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    invalid: tuple[InvalidToolCall, ...] = ()


def read(answer: str, form: Format, names: Sequence[str]) -> Said:
    """Calls out of an answer. A call that is no JSON, or of an unknown tool, is invalid, with the reason."""
    start = answer.find(form.trigger) if form.trigger else _object(answer, form)
    if start < 0:
        return Said(answer)
    calls, invalid, place = list[ToolCall](), list[InvalidToolCall](), start
    while place >= 0:
        place += len(form.trigger)
        found, stop, reason = _parsed(answer, place)
        for item in found:
            problem = _problem(item, form, names)
            if problem is None:
                calls.append(
                    tool_call(name=item[form.name_key], args=item[form.arguments_key], id=_identity(item))
                )
            else:
                invalid.append(_invalid(item, form, problem))
        if reason is not None:
            invalid.append(invalid_tool_call(name=None, args=answer[place:], id=_identity({}), error=reason))
        place = answer.find(form.trigger, stop) if form.trigger else -1
    return Said(answer[:start].rstrip(), tuple(calls), tuple(invalid))


def _object(answer: str, form: Format) -> int:
    """Where an answer without any mark begins to be a call."""
    bare = answer.lstrip()
    return len(answer) - len(bare) if bare.startswith(form.opening.strip()[:1]) and bare else -1


def _parsed(answer: str, place: int) -> tuple[list[Any], int, str | None]:
    """Objects that stand at ``place``, where they end, and what was wrong."""
    text = answer[place:]
    body = text.lstrip()
    try:
        found, stop = json.JSONDecoder().raw_decode(body)
    except json.JSONDecodeError as error:
        return [], len(answer), f"not JSON: {error}"
    return found if isinstance(found, list) else [found], place + len(text) - len(body) + stop, None


def _problem(item: Any, form: Format, names: Sequence[str]) -> str | None:
    if not isinstance(item, dict) or not isinstance(item.get(form.name_key), str):
        return f"no {form.name_key!r} in it"
    if not isinstance(item.get(form.arguments_key), dict):
        return f"no object {form.arguments_key!r} in it"
    if item[form.name_key] not in names:
        return f"{item[form.name_key]!r} is none of the tools {list(names)}"
    return None


def _invalid(item: Any, form: Format, problem: str) -> InvalidToolCall:
    name = item.get(form.name_key) if isinstance(item, dict) else None
    shown = json.dumps(item, ensure_ascii=False)
    return invalid_tool_call(name=name if isinstance(name, str) else None, args=shown, id=None, error=problem)


def _identity(item: Any) -> str:
    given = item.get("id") if isinstance(item, dict) else None
    return given if isinstance(given, str) and given else uuid4().hex[:9]
