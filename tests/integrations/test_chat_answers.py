"""What a model says, read: text and calls, calls that are none, and why an answer ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool

from agentkv import Engine
from agentkv.errors import InvalidInput, UnsupportedMessage
from agentkv.integrations.calls import read
from agentkv.integrations.chat import ChatAgentKV
from agentkv.integrations.templates import HERMES
from tests.integrations import agents_case as case
from tests.integrations.agents_case import LLAMA, Chat, call, look, saying, tokenizer


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with case.engine() as built:
        yield built


def wrapped(text: str) -> str:
    return f"<tool_call>\n{text}\n</tool_call>"


BROKEN = {
    "cut": ('<tool_call>\n{"name": "wipe", "arguments": {"path": "/tmp/x', "not JSON"),
    "no JSON": (wrapped("wipe it"), "not JSON"),
    "no such tool": (wrapped('{"name": "burn", "arguments": {}}'), "'burn' is none of the tools ['wipe']"),
    "words for arguments": (wrapped('{"name": "wipe", "arguments": "all"}'), "no object 'arguments'"),
    "half an object quoted": (wrapped('{"name": "wipe", "arguments": "{\\"path\\": "}'), "no object"),
    "no arguments": (wrapped('{"name": "wipe"}'), "no object 'arguments'"),
    "no name": (wrapped("{}"), "no 'name' in it"),
    "half a character": (wrapped('{"name": "wipe", "arguments": {"path": "\\ud800"}}'), "surrogates"),
    "deep": ("<tool_call>\n" + "[[[[" * 400, "not JSON"),
}


def agent_that_says(engine: Engine, first: str, ran: list[str]) -> Any:
    @tool
    def wipe(path: str = "/") -> str:
        """Delete a folder."""
        ran.append(path)
        return f"wiped {path}"

    chat = Chat(engine=engine, script=saying(first, "Done."), max_tokens=len(tokenizer()(first)["input_ids"]))
    return case.agent(chat, tools=(wipe,))


@pytest.mark.parametrize("how", ["invoke", "stream"])
@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_call_runs_nothing_and_says_why(engine: Engine, broken: str, how: str) -> None:
    text, reason = BROKEN[broken]
    ran: list[str] = []
    agent, config = agent_that_says(engine, text, ran), {"configurable": {"thread_id": f"{broken} {how}"}}
    if how == "stream":  # the model is streamed as well
        for _ in agent.stream({"messages": [("user", "Tidy up.")]}, config, stream_mode="messages"):
            pass
    else:
        agent.invoke({"messages": [("user", "Tidy up.")]}, config)
    said = agent.get_state(config).values["messages"][-1]
    assert isinstance(said, AIMessage)
    assert not said.tool_calls
    (bad,) = said.invalid_tool_calls
    assert bad["id"]
    assert reason in str(bad["error"] if how == "invoke" else bad["args"])
    after = agent.invoke({"messages": [("user", "And now?")]}, config)["messages"]
    assert after[-1].text == "Done."
    assert not ran


def test_a_number_of_too_many_digits_is_no_call(engine: Engine) -> None:
    (bad,) = read(wrapped("1" * 5000), Chat(engine=engine, script=case.free).call_format, ["look"]).invalid
    assert "not JSON" in str(bad["error"])


def test_arguments_that_are_quoted_once_more_are_taken(engine: Engine) -> None:
    ran: list[str] = []
    quoted = json.dumps({"name": "wipe", "arguments": json.dumps({"path": "/tmp/x"})})
    agent = agent_that_says(engine, wrapped(quoted), ran)
    config = {"configurable": {"thread_id": "quoted"}}
    list(agent.stream({"messages": [("user", "Tidy up.")]}, config, stream_mode="messages"))
    assert ran == ["/tmp/x"]


def test_good_and_broken_calls_beside_each_other(engine: Engine) -> None:
    text = call("look", place=1) + wrapped('{"name": "burn", "arguments": {}}') + call("look", place=2)
    chat = Chat(engine=engine, script=lambda *_: text, max_tokens=200).bind_tools([look])
    said = chat.invoke("hi")
    whole: Any = None
    for chunk in chat.stream("hi"):
        whole = chunk if whole is None else whole + chunk
    for message in (said, whole):
        assert [c["args"] for c in message.tool_calls] == [{"place": 1}, {"place": 2}]
        assert [c["name"] for c in message.invalid_tool_calls] == ["burn"]


PROSE = [
    "The set {1, 2} has two members, the set {3} one.",
    'In Go: func main() { fmt.Println("hi") } and then build it.',
    'Call it as {"name": "look", "parameters": {"place": 1}}.',
    '{"a": 1} is what the file has to say.',
    "{1, 2} is a set.",
    '{"name": "Ada", "age": 36}',
    "[1, 2]",
]


@pytest.mark.parametrize("text", PROSE)
def test_braces_in_prose_are_no_calls(engine: Engine, text: str) -> None:
    """A template that calls without a mark: all that is not meant as a call is said, word for word."""
    chat = Chat(engine=engine, script=lambda *_: text, max_tokens=80, chat_template=LLAMA)
    said = chat.bind_tools([look]).invoke("hi")
    assert said.text == text
    assert not said.tool_calls
    assert not said.invalid_tool_calls
    pieces = [chunk.text for chunk in chat.bind_tools([look]).stream("hi")]
    assert "".join(pieces) == text
    if text[0] not in "{[":
        assert len([piece for piece in pieces if piece]) > 3  # nothing was held back


def test_calls_without_a_mark(engine: Engine) -> None:
    def said(text: str) -> AIMessage:
        chat = Chat(engine=engine, script=lambda *_: text, max_tokens=80, chat_template=LLAMA)
        return chat.bind_tools([look]).invoke("hi")

    one, two = (f'{{"name": "look", "parameters": {{"place": {n}}}}}' for n in (1, 2))
    for text in (f"\n {one}; {two}", f"{one}\n{two}", f"{one}, {two} Seen."):
        assert [c["args"] for c in said(text).tool_calls] == [{"place": 1}, {"place": 2}]
    (bad,) = said(one[:-4]).invalid_tool_calls
    assert "not JSON" in str(bad["error"])
    (bad,) = said('{"name": "burn", "parameters": {}}').invalid_tool_calls
    assert "none of the tools" in str(bad["error"])


def test_an_answer_that_is_complete_at_the_last_token_was_not_cut(engine: Engine) -> None:
    text = call("look", place=1)
    size = len(tokenizer()(text)["input_ids"])
    for room, reason in ((size, "tool_calls"), (size - 1, "length")):
        chat = Chat(engine=engine, script=lambda *_: text, max_tokens=room).bind_tools([look])
        assert chat.invoke("hi").response_metadata["finish_reason"] == reason


def test_one_stop_text_is_one_text(engine: Engine) -> None:
    chat = Chat(engine=engine, script=lambda *_: "Go to the NORTH END of it.", max_tokens=40)
    assert chat.invoke("hi", stop="END").text == "Go to the NORTH "  # type: ignore[arg-type]


SURROGATE = "a \ud800 b"


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([HumanMessage([{"type": "text"}])], r"message 0 \(human\).*whose text is None.*a str"),
        ([HumanMessage([{"type": "text", "text": None}])], "whose text is None"),
        ([HumanMessage([{"type": "json"}])], "json block.*KeyError"),
        ([HumanMessage([{"type": "json", "json": {1, 2}}])], "json block.*TypeError"),
        ([HumanMessage(SURROGATE)], r"lone surrogate.*a \\ud800 b"),
        ([AIMessage("", tool_calls=[{"name": "look", "args": {"q": SURROGATE}, "id": "1"}])], "surrogate"),
    ],
)
def test_blocks_without_a_value_are_refused(engine: Engine, messages: list[Any], said: str) -> None:
    chat = Chat(engine=engine, script=case.free, max_tokens=4)
    with pytest.raises(UnsupportedMessage, match=said):
        chat.invoke([*messages, HumanMessage("hi")])


NO_TOOLS: list[dict[str, Any]] = [
    {"type": "web_search"},
    {"type": "web_search_20250305", "max_uses": 3},
    {"type": "function", "name": "look", "parameters": {}},
    {"type": "function", "function": {"name": None}},
    {},
]


@pytest.mark.parametrize("given", NO_TOOLS)
def test_what_is_no_tool_is_refused(engine: Engine, given: dict[str, Any]) -> None:
    chat = Chat(engine=engine, script=case.free, max_tokens=4)
    for use in (
        lambda: chat.bind_tools([given]),
        lambda: chat.bind(tools=[given]).invoke("hi"),
        lambda: chat.get_num_tokens_from_messages([HumanMessage("hi")], [given]),
    ):
        with pytest.raises(InvalidInput, match=r"the tool .*expected a function, a pydantic class"):
            use()


def test_a_schema_of_anthropic_is_a_tool(engine: Engine) -> None:
    schema = {"type": "object", "properties": {"place": {"enum": [7]}}, "required": ["place"]}
    given = {"type": "custom", "name": "look", "description": "Look.", "input_schema": schema}
    chat = ChatAgentKV(engine=engine, chat_template=HERMES, max_tokens=60)
    assert [c["args"] for c in chat.bind_tools([given], tool_choice="any").invoke("hi").tool_calls] == [
        {"place": 7}
    ]


@pytest.mark.parametrize("name", ['a"b', "back\\slash", "búsqueda", "line\nbreak"])
def test_names_that_json_escapes(engine: Engine, name: str) -> None:
    """They are shown, called by a grammar, read, and found again in the history."""
    schema = {"type": "function", "function": {"name": name, "description": "x"}}
    model = ChatAgentKV(engine=engine, chat_template=HERMES, max_tokens=60)
    chat = model.bind_tools([schema], tool_choice="any")
    said = chat.invoke("hi")
    assert [c["name"] for c in said.tool_calls] == [name]
    result = ToolMessage("done", tool_call_id=said.tool_calls[0]["id"])
    assert chat.invoke([HumanMessage("hi"), said, result]).tool_calls


def test_a_seed_that_no_generator_takes_is_refused(engine: Engine) -> None:
    chat = Chat(engine=engine, script=case.free, max_tokens=4)
    with pytest.raises(InvalidInput, match="seed"):
        chat.invoke("hi", seed=2**70, temperature=1.0)
