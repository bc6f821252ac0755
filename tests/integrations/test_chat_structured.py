"""Answers as objects: through grammars, in agents with and without tools, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import ToolMessage
from pydantic import BaseModel
from torch import Tensor
from typing_extensions import TypedDict

from agentkv import Engine
from agentkv.errors import InvalidInput
from agentkv.integrations.answering import Request
from agentkv.integrations.chat import ChatAgentKV
from agentkv.integrations.templates import HERMES
from agentkv.sampling import Guide
from tests.integrations import agents_case as case
from tests.integrations.agents_case import LLAMA, Chat, call, calling, read


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with case.engine() as built:
        yield built


class Town(BaseModel):
    """A town."""

    name: Literal["Oslo", "Rome"]


class Bill(TypedDict):
    """A bill."""

    cents: int
    to: str


class Both:
    """What two guides allow."""

    def __init__(self, *guides: Guide) -> None:
        self.guides = guides

    def mask(self, logits: Tensor) -> Tensor:
        for guide in self.guides:
            logits = guide.mask(logits)
        assert logits.isfinite().any(), "the grammar forbids what the script says"
        return logits

    def push(self, token: int) -> bool:
        ended = [guide.push(token) for guide in self.guides]  # each is told
        return all(ended)


class Held(Chat):
    """Says what its script says, as far as the grammar of the call lets it."""

    def guide(self, request: Request) -> Guide | None:
        grammar = ChatAgentKV.guide(self, request)
        told = super().guide(request.model_copy(update={"response_format": None}))
        assert grammar is not None
        assert told is not None
        return Both(grammar, told)


@pytest.mark.parametrize(
    "how", [Town, ToolStrategy(Town), ProviderStrategy(Town)], ids=["auto", "tool", "own"]
)
def test_an_agent_answers_with_an_object(engine: Engine, how: Any) -> None:
    chat = ChatAgentKV(engine=engine, chat_template=HERMES, max_tokens=60)
    agent = case.agent(chat, tools=(), response_format=how)
    found = agent.invoke({"messages": [("user", "Where?")]}, {"configurable": {"thread_id": str(how)}})
    assert isinstance(found["structured_response"], Town)


@pytest.mark.parametrize("template", [HERMES, LLAMA], ids=["marked", "bare"])
@pytest.mark.parametrize("how", [Town, ProviderStrategy(Town)], ids=["auto", "own"])
def test_an_agent_calls_tools_and_then_answers_with_an_object(
    engine: Engine, how: Any, template: str
) -> None:
    first = call("read", page=3) if template is HERMES else '{"name": "read", "parameters": {"page": 3}}'
    script = calling(lambda done: '{"name": "Rome"}' if done else first)
    chat = Held(engine=engine, script=script, chat_template=template, max_tokens=60)
    agent = case.agent(chat, tools=(read,), response_format=how)
    config = {"configurable": {"thread_id": f"{how} {template}"}}
    found = agent.invoke({"messages": [("user", "Where?")]}, config)
    assert found["structured_response"] == Town(name="Rome")
    assert [m.text[:6] for m in found["messages"] if isinstance(m, ToolMessage)] == ["Page 3"]


def test_the_profile_says_so_before_there_is_an_engine(engine: Engine) -> None:
    """Agents choose their strategy by it."""
    for chat in (ChatAgentKV(), ChatAgentKV(engine=engine)):
        assert chat.profile is not None
        assert chat.profile["structured_output"]
        assert ("max_input_tokens" in chat.profile) == (chat.engine is not None)


def test_a_response_format_without_a_schema_is_refused(engine: Engine) -> None:
    chat = ChatAgentKV(engine=engine, max_tokens=4)
    for given in ({"type": "json_schema"}, {"type": "json_schema", "json_schema": {}}, Town):
        with pytest.raises(InvalidInput, match="response_format"):
            chat.invoke("Where?", response_format=given)


@pytest.mark.parametrize("schema", [Town, Bill], ids=["pydantic", "typed dict"])
@pytest.mark.parametrize("method", ["json_schema", "json_mode", "function_calling"])
def test_an_object_that_was_cut_is_none(engine: Engine, method: str, schema: type) -> None:
    room = 7 if schema is Town else 12
    chat = ChatAgentKV(engine=engine, chat_template=HERMES, max_tokens=room)
    plain = chat.with_structured_output(schema, method=method)
    with pytest.raises(OutputParserException, match=r"finish_reason='length'.*raise max_tokens"):
        plain.invoke("Where?")
    with pytest.raises(OutputParserException, match="length"):
        asyncio.run(plain.ainvoke("Where?"))
    with pytest.raises(OutputParserException, match="length"):
        list(plain.stream("Where?"))
    found = chat.with_structured_output(schema, method=method, include_raw=True).invoke("Where?")
    assert found["parsed"] is None
    assert "length" in str(found["parsing_error"])


@pytest.mark.parametrize("method", ["json_schema", "json_mode", "function_calling"])
def test_an_object_that_ends_at_the_last_token_is_whole(engine: Engine, method: str) -> None:
    chat = ChatAgentKV(engine=engine, chat_template=HERMES, max_tokens=60)
    raw = chat.with_structured_output(Town, method=method, include_raw=True).invoke("Where?")["raw"]
    tight = chat.model_copy(update={"max_tokens": raw.usage_metadata["output_tokens"]})
    assert isinstance(tight.with_structured_output(Town, method=method).invoke("Where?"), Town)
    asked = chat.with_structured_output(Town, method=method)
    assert isinstance(asyncio.run(asked.ainvoke("Where?")), Town)
    assert isinstance(list(asked.stream("Where?"))[-1], Town)


def test_a_stop_text_inside_of_an_object_cuts_it(engine: Engine) -> None:
    chat = ChatAgentKV(engine=engine, chat_template=HERMES, max_tokens=60, stop=["name"])
    with pytest.raises(OutputParserException, match="stop"):
        chat.with_structured_output(Town).invoke("Where?")


def shape(name: str, value: int) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"enum": [value]}}, "required": [name]}


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        ({"allOf": [shape("a", 1), shape("b", 2)]}, {"a": 1, "b": 2}),
        ({**shape("a", 1), "anyOf": [shape("b", 2)]}, {"a": 1, "b": 2}),
        ({**shape("a", 1), "oneOf": [shape("b", 2)]}, {"a": 1, "b": 2}),
        ({"$defs": {"B": shape("b", 2)}, **shape("a", 1), "$ref": "#/$defs/B"}, {"a": 1, "b": 2}),
        ({**shape("properties", 1)}, {"properties": 1}),
        (
            {"type": "object", "properties": {"properties": shape("a", 1)}, "required": ["properties"]},
            {"properties": {"a": 1}},
        ),
    ],
)
def test_an_object_is_what_its_schema_says(engine: Engine, schema: dict[str, Any], wanted: Any) -> None:
    """Schemas that are joined leave each other room: what is wanted may be said, token by token."""
    chat = Held(engine=engine, script=lambda *_: json.dumps(wanted), max_tokens=60)
    assert json.loads(chat.bind(response_format=schema).invoke("hi").text) == wanted


@pytest.mark.parametrize("value", [{"const": {"properties": {"x": 1}}}, {"enum": [{"properties": {"x": 1}}]}])
def test_values_in_a_schema_are_no_schemas(engine: Engine, value: dict[str, Any]) -> None:
    chat = ChatAgentKV(engine=engine, max_tokens=60)
    schema = {"type": "object", "properties": {"c": value}, "required": ["c"]}
    said = chat.invoke("Where?", response_format=schema)
    assert json.loads(said.text) == {"c": {"properties": {"x": 1}}}
