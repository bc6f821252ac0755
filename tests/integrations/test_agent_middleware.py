"""Agents whose images and tool results leave and come back: what the model sees, what the state keeps."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agentkv_orchestrator.errors import PolicyError
from agentkv_orchestrator.policy import Policy
from langchain.agents.middleware import ContextEditingMiddleware
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.store.base import Op, PutOp
from langgraph.store.memory import InMemoryStore

from agentkv import Engine
from agentkv.errors import InvalidInput
from agentkv.integrations import AgentKVContextEdit, AgentKVMiddleware, evictable
from agentkv.integrations.cards import ChunkCard
from agentkv.integrations.evictable import RECALL
from tests.integrations import agents_case as case
from tests.integrations.agents_case import (
    LOOK,
    THREAD,
    Chat,
    agent,
    call,
    calling,
    card,
    look,
    picture,
    read,
    rooms,
    tool_words,
    words,
)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with case.engine() as built:
        yield built


def test_only_the_newest_images_are_seen(engine: Engine) -> None:
    chat = Chat(engine=engine, script=rooms(4))
    graph = agent(chat, AgentKVMiddleware(keep_images=1))
    said = graph.invoke(LOOK, THREAD)["messages"]
    assert tool_words(said) == ["image"] * 4, "the state keeps them all"
    assert [tool_words(request.messages) for request in chat.asked] == [
        [],
        ["image"],
        [card(1), "image"],
        [card(1), card(2), "image"],
        [card(1), card(2), card(3), "image"],
    ]
    assert case.held(chat, "t", said[-1]) == case.rendered(chat, chat.asked[-1], said[-1])


@pytest.mark.parametrize("policy", ["exact", "fast"])
def test_a_card_costs_no_prefill_of_what_stays(policy: str) -> None:
    """Behind an image that left, fast moves what stays; exact computes it again."""
    with case.engine() as own:
        chat = Chat(engine=own, script=rooms(4), policy=policy)
        said = agent(chat, AgentKVMiddleware(keep_images=2)).invoke(LOOK, THREAD)["messages"]
        formed = [case.formed(message) for message in said if isinstance(message, AIMessage)]
        usual = formed[2]  # a call that only adds a look to the list; the next two lose an image as well
        (left,) = chat.prompts.messages(chat.asked[-1].messages[2:3], answer=False)
    if policy == "fast":
        assert max(formed[3:]) <= usual + left.tokens
    else:
        assert min(formed[3:]) > 2 * (usual + left.tokens)


def test_numbers_stay_when_messages_leave_the_state(engine: Engine) -> None:
    chat = Chat(engine=engine, script=rooms(3))
    graph = agent(chat, AgentKVMiddleware(keep_images=1))
    said = graph.invoke(LOOK, THREAD)["messages"]
    graph.update_state(THREAD, {"messages": [RemoveMessage(id=m.id) for m in said[1:3]]})
    chat.script = case.replying
    answer = graph.invoke({"messages": [HumanMessage("Well?")]}, THREAD)["messages"][-1]
    assert tool_words(chat.asked[-1].messages) == [card(2), "image"]
    assert case.held(chat, "t", answer) == case.rendered(chat, chat.asked[-1], answer)


def test_what_asks_to_be_kept_stays_and_is_not_counted(engine: Engine) -> None:
    pinned = {**picture(90), "cache_control": {"type": "ephemeral"}}
    ask = HumanMessage([{"type": "text", "text": "Like this:"}, pinned, picture(91)])
    chat = Chat(engine=engine, script=rooms(1))
    agent(chat, AgentKVMiddleware(keep_images=1)).invoke({"messages": [ask]}, THREAD)
    assert words(chat.asked[-1].messages[0]) == ["Like this:", "image", card(2)]
    assert tool_words(chat.asked[-1].messages) == ["image"]


def test_a_number_is_of_what_is_seen() -> None:
    """Not of the ids that LangChain gives its blocks, nor of the message."""
    twice = [HumanMessage([{**picture(1), "id": name}, picture(2)]) for name in ("lc_1", "lc_2")]
    numbers = evictable.numbered(evictable.images(twice), {})
    assert sorted(numbers.values()) == [1, 2]
    again = evictable.numbered(evictable.images([*twice, HumanMessage([picture(3)])]), numbers)
    assert list(again.values()) == [3]


def test_results_leave_as_images_do(engine: Engine) -> None:
    def step(done: int) -> str:
        if done == 3:
            return call(RECALL, name="result of read 1")
        return call("read", page=done) if done < 3 else "Read."

    chat = Chat(engine=engine, script=calling(step))
    graph = agent(chat, AgentKVMiddleware(keep_results=1), tools=[read])
    graph.invoke(LOOK, THREAD)
    first = tool_words(chat.asked[1].messages)[0]
    seen = tool_words(chat.asked[-1].messages)
    assert seen[:2] == [card(1, "result of read"), card(2, "result of read")]
    assert seen[2].startswith("Page 2")
    assert seen[3] == f"result of read 1:\n {first}"


@pytest.mark.parametrize("options", [{"exclude_tools": ["read"]}, {"keep_results": None}])
def test_results_that_stay(engine: Engine, options: dict[str, Any]) -> None:
    chat = Chat(engine=engine, script=calling(lambda done: call("read", page=done) if done < 2 else "Read."))
    agent(chat, AgentKVMiddleware(**{"keep_results": 0, **options}), tools=[read]).invoke(LOOK, THREAD)
    assert all(text.startswith("Page") for text in tool_words(chat.asked[-1].messages))


def test_results_of_order_free_tools_are_documents(engine: Engine) -> None:
    both = "\n".join(call("read", page=page) for page in (1, 2))
    chat = Chat(engine=engine, script=calling(lambda done: "Read." if done else both), max_tokens=90)
    said = agent(chat, AgentKVMiddleware(order_free_tools=["read"]), tools=[read]).invoke(LOOK, THREAD)[
        "messages"
    ]
    window = chat.window_of(said[-1])
    assert window is not None
    kinds = [(entry.handle.kind, entry.order_free) for entry in window.content.live()]
    assert kinds.count(("document", True)) == 2
    assert not any("agentkv" in message.additional_kwargs for message in said)


def test_a_result_that_asks_to_be_kept_has_its_place(engine: Engine) -> None:
    kept = ToolMessage(
        [{"type": "text", "text": "Page 1.", "cache_control": {"type": "ephemeral"}}], tool_call_id="a"
    )
    kept.name = "read"
    asked = [*LOOK["messages"], AIMessage("", tool_calls=[{"name": "read", "args": {}, "id": "a"}]), kept]
    chat = Chat(engine=engine, script=lambda messages, tools: "Read.")
    middleware = AgentKVMiddleware(order_free_tools=["read"])
    said = agent(chat, middleware, tools=[read]).invoke({"messages": asked}, THREAD)["messages"][-1]
    window = chat.window_of(said)
    assert window is not None
    assert [(e.handle.kind, e.pinned) for e in window.content.live()][-2] == ("tool", True)


def test_cards_of_a_thread_with_a_period_in_its_name(engine: Engine) -> None:
    store, chat = InMemoryStore(), Chat(engine=engine, script=rooms(3))
    graph = agent(chat, AgentKVMiddleware(keep_images=1, namespace=("cards",)), store=store)
    graph.invoke(LOOK, {"configurable": {"thread_id": "ada@50%.org"}})
    assert len(store.search(("cards", "ada@50%25%2Eorg"))) == 2


def test_cards_of_what_left_are_in_the_store(engine: Engine) -> None:
    puts = list[PutOp]()

    class Counting(InMemoryStore):
        def batch(self, ops: Iterable[Op]) -> list[Any]:
            ops = list(ops)
            puts.extend(op for op in ops if isinstance(op, PutOp))
            return super().batch(ops)

    store = Counting()
    chat = Chat(engine=engine, script=calling(lambda done: call("read", page=done) if done < 3 else "Read."))
    middleware = AgentKVMiddleware(keep_results=1, namespace=("agents", "cards"))
    agent(chat, middleware, tools=[read], store=store).invoke(LOOK, THREAD)
    found = {entry.key: entry.value for entry in store.search(("agents", "cards", "t"))}
    assert sorted(found) == ["1", "2"]
    assert len(puts) == 2, "once each"
    words = found["2"].pop("words")
    card = ChunkCard(kind="result of read", words="", thread="t", tags=[f"{RECALL}('2')"])
    assert {**found["2"], "words": ""} == card.value()
    assert words.startswith("Page 1 tells")
    assert len(words) <= 400


def test_cards_without_a_store_are_refused(engine: Engine) -> None:
    chat = Chat(engine=engine, script=rooms(2))
    with pytest.raises(InvalidInput, match="store="):
        agent(chat, AgentKVMiddleware(keep_images=1, namespace=("cards",))).invoke(LOOK, THREAD)


def test_policy_and_settings_reach_the_model(engine: Engine) -> None:
    chat = Chat(engine=engine, script=rooms(0))
    middleware = AgentKVMiddleware(policy="fast", settings={"max_tokens": 3})
    agent(chat, middleware).invoke(LOOK, THREAD)
    (request,) = chat.asked
    assert (request.policy, request.max_tokens) == (Policy.parse("fast"), 3)
    assert [schema["function"]["name"] for schema in request.tools] == ["look"], "nothing to recall"


def test_another_model_sees_the_cards_and_not_the_settings(engine: Engine) -> None:
    """A fake model takes any option, so what it was bound to is looked at."""
    bound = list[dict[str, Any]]()

    class Fake(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **options: Any) -> Any:
            bound.append(options)
            return self

    chat = Chat(engine=engine, script=rooms(3))
    graph = agent(chat, AgentKVMiddleware(keep_images=1, policy="fast"))
    graph.invoke(LOOK, THREAD)
    other = Fake(messages=iter([AIMessage("Me too.")]))
    graph = agent(other, AgentKVMiddleware(keep_images=1, policy="fast"), checkpointer=graph.checkpointer)
    said = graph.invoke({"messages": [HumanMessage("And you?")]}, THREAD)["messages"]
    assert said[-1].text == "Me too."
    assert "policy" not in bound[0]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"keep_images": -1}, "keep_images"),
        ({"keep_results": True}, "keep_results"),
        ({"recall_turns": 1.5}, "recall_turns"),
        ({"settings": {"max_token": 3}}, "max_token"),
        ({"settings": {"thread_id": "x"}}, "thread_id"),
        ({"settings": {"owner": "x"}}, "owner"),
        ({"policy": "exactly"}, "exactly"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises((InvalidInput, PolicyError), match=named):
        AgentKVMiddleware(**options)


def test_a_long_list_loses_its_oldest(engine: Engine) -> None:
    """Counted by the model: short lists stay whole."""

    def step(done: int) -> str:
        if done == 6:
            return "Done."
        return call("look", place=done) if done % 2 else call("read", page=done)

    chat = Chat(engine=engine, script=calling(step), policy="balanced")
    edit = AgentKVContextEdit(trigger=600, keep_images=1, keep_results=2)
    editing = ContextEditingMiddleware(edits=[edit], token_count_method="model")
    said = agent(chat, editing, tools=[look, read]).invoke(LOOK, THREAD)["messages"]
    seen = [tool_words(request.messages) for request in chat.asked]
    assert not any("evicted" in text for text in seen[2])
    assert [text[:18] for text in seen[-1]] == [
        "[result of read 1:",
        "[result of look 3:",
        "[result of read 4:",
        "[result of look 6:",
        "Page 4 tells how t",
        "image",
    ]
    assert case.held(chat, "t", said[-1]) == case.rendered(chat, chat.asked[-1], said[-1])
    assert case.cached(said[-1]) > 0


def test_a_context_edit_keeps_what_asks_for_it() -> None:
    pinned = {**picture(1), "cache_control": {"type": "ephemeral"}}
    messages: list[AnyMessage] = [HumanMessage([pinned]), HumanMessage([picture(2), picture(3)])]
    AgentKVContextEdit(trigger=1, keep_images=1).apply(messages, count_tokens=len)
    assert [words(message) for message in messages] == [["image"], ["[image 2: evicted]", "image"]]


@pytest.mark.parametrize("model", ["tiny", pytest.param("embedded", marks=pytest.mark.slow)])
def test_the_snippets_of_the_page_run(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs/agents/middleware.md").read_text()
    snippets = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(snippets) == 2
    with case.engine() as tiny:
        if model == "tiny":
            monkeypatch.setattr(Engine, "from_pretrained", lambda *_: tiny)
        for snippet in snippets:
            exec(compile(ast.parse(snippet), "docs/agents/middleware.md", "exec"), {})
    assert "cache_creation" in capsys.readouterr().out
