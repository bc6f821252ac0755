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
from langchain_core.utils.function_calling import convert_to_openai_tool

from agentkv.errors import InvalidInput, UnsupportedMessage
from agentkv.integrations.template import ChatTemplate

_NAME, _KEY, _VALUE, _ID = "agentkvname", "agentkvkey", "agentkvvalue", "agentkv00"
_ASKED = {"role": "user", "content": "agentkvfirst"}

_BETWEEN = re.compile(r"[\s;,]*(?=[\[{])")
"""What may stand in front of a call that no mark announces, and between two of them."""


@dataclass(frozen=True)
class Format:
    """One call is ``opening + name + middle + arguments + closing``, the arguments as JSON.

    opening ends with the JSON up to the name; ``trigger`` is what stands in front of that JSON ("" where an
    answer that begins with a JSON object is a call).
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


def shown(tools: Sequence[Any]) -> list[dict[str, Any]]:
    """Tools as OpenAI's function schemas. Raises InvalidInput for what is none, such as a provider's own."""
    return [_shown(tool) for tool in tools]


def _shown(tool: Any) -> dict[str, Any]:
    try:
        made = convert_to_openai_tool(tool)
        if isinstance(made["function"]["name"], str):
            return made
        reason = "its name is no str"
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
    raise InvalidInput(
        got=f"the tool {str(tool)[:120]} ({reason[:80]})",
        expected="a function, a pydantic class, a BaseTool, or a dict of type 'function' whose 'function' "
        "has name, description and parameters, a JSON schema",
        do="pass one of these; tools that a provider runs by itself, such as web search, do not exist here",
    )


def read(answer: str, form: Format, names: Sequence[str]) -> Said:
    """Calls out of an answer. A call that is no JSON, or of an unknown tool, is invalid, with the reason; an
    object that a format without marks would call by, and that names nothing, is text. Text behind the first
    call is left out."""
    place = answer.find(form.trigger) if form.trigger else _bare(answer, 0)
    text, calls, invalid = answer[: max(place, 0)].rstrip(), list[ToolCall](), list[InvalidToolCall]()
    while place >= 0:
        begin = place + len(form.trigger)
        try:
            value, place = _parsed(answer, begin)
        except (ValueError, RecursionError) as error:
            if form.trigger or calls or _names(answer[begin:], form):
                invalid.append(_invalid(None, answer[begin:], f"not JSON: {error}"))
            break
        found = value if isinstance(value, list) else [value]
        if not form.trigger and not any(_calls(item, form, names) for item in found):
            break
        for item in found:
            problem = _problem(item, form, names)
            if problem is None:
                given = _arguments(item, form)
                calls.append(tool_call(name=item[form.name_key], args=given, id=_identity(item)))
            else:
                name = item.get(form.name_key) if isinstance(item, dict) else None
                shown = json.dumps(item, ensure_ascii=False)
                invalid.append(_invalid(name, shown, problem, _identity(item)))
        place = answer.find(form.trigger, place) if form.trigger else _bare(answer, place)
    return Said(text, tuple(calls), tuple(invalid)) if calls or invalid else Said(answer)


def _bare(answer: str, place: int) -> int:
    """Where JSON begins behind ``place``, with nothing but what separates calls in between; -1: nowhere."""
    found = _BETWEEN.match(answer, place)
    return found.end() if found else -1


def _parsed(text: str, place: int) -> tuple[Any, int]:
    """The JSON behind ``place``, and where it ends. Raises ValueError (of numbers of too many digits as well)
    and RecursionError; what could be read and not written again is none."""
    begin = place + len(text[place:]) - len(text[place:].lstrip())
    value, stop = json.JSONDecoder().raw_decode(text, begin)
    json.dumps(value, ensure_ascii=False).encode()
    return value, stop


def _names(broken: str, form: Format) -> bool:
    """Whether what is no JSON began to be a call."""
    return re.match(rf'[\[{{\s]*"{form.name_key}"\s*:', broken) is not None


def _calls(item: Any, form: Format, names: Sequence[str]) -> bool:
    """Whether an object is meant as a call: any object may be an answer."""
    return (
        isinstance(item, dict)
        and form.name_key in item
        and (form.arguments_key in item or item[form.name_key] in names)
    )


def _arguments(item: dict[str, Any], form: Format) -> Any:
    """Small models quote the object once more."""
    given = item.get(form.arguments_key)
    if not isinstance(given, str):
        return given
    try:
        value, stop = _parsed(given, 0)
    except (ValueError, RecursionError):
        return given
    return given if given[stop:].strip() else value


def _problem(item: Any, form: Format, names: Sequence[str]) -> str | None:
    if not isinstance(item, dict) or not isinstance(item.get(form.name_key), str):
        return f"no {form.name_key!r} in it"
    if item[form.name_key] not in names:
        return f"{item[form.name_key]!r} is none of the tools {list(names)}"
    if not isinstance(_arguments(item, form), dict):
        return f"no object {form.arguments_key!r} in it"
    return None


def _invalid(name: Any, args: str, problem: str, call_id: str | None = None) -> InvalidToolCall:
    known = name if isinstance(name, str) else None
    return invalid_tool_call(name=known, args=args, id=call_id or _identity(None), error=problem)


def _identity(item: Any) -> str:
    given = item.get("id") if isinstance(item, dict) else None
    return given if isinstance(given, str) and given else uuid4().hex[:9]
