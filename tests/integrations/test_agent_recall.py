"""What was evicted comes back when the agent asks for it, and is in the checkpoint as strings and numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from langchain.agents.middleware import ClearToolUsesEdit, ContextEditingMiddleware
from langchain_core.messages import HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Send

from agentkv import Engine
from agentkv.integrations import AgentKVMiddleware
from agentkv.integrations.evictable import RECALL
from agentkv.integrations.store import AgentKVStore
from agentkv.store.memory import MemoryStore
from tests.integrations import agents_case as case
from tests.integrations.agents_case import LOOK, THREAD, Chat, agent, call, calling, card, picture, tool_words


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with case.engine() as built:
        yield built


def recalling(name: str, looks: int = 3, more: int = 0) -> case.Script:
    """So many looks, a recall, so many looks, and an end."""

    def step(done: int) -> str:
        if done == looks:
            return call(RECALL, name=name)
        return call("look", place=done) if done < looks + 1 + more else "Seen."

    return calling(step)


def test_an_image_comes_back_and_leaves_again(engine: Engine) -> None:
    chat = Chat(engine=engine, script=recalling("1", more=2))
    graph = agent(chat, AgentKVMiddleware(keep_images=1, recall_turns=2))
    said = graph.invoke(LOOK, THREAD)["messages"]
    seen = [tool_words(request.messages) for request in chat.asked]
    assert seen[4] == [card(1), card(2), "image", "image 1:\n image"]
    assert seen[5] == [card(1), card(2), card(3), "image 1:\n image", "image"]
    assert seen[6][3:] == [f"[{RECALL}: 1 is not shown here any more]", card(4), "image"]
    shown = chat.asked[4].messages[-1]
    assert shown.content[1] == picture(0)
    recall = next(m for m in said if isinstance(m, ToolMessage) and m.name == RECALL)
    assert (recall.text, recall.status) == ("image 1 is shown again.", "success")
    assert case.held(chat, "t", said[-1]) == case.rendered(chat, chat.asked[-1], said[-1])


@pytest.mark.parametrize("name", ["image 1", " 1 "])
def test_what_is_written_on_the_card_is_a_name(engine: Engine, name: str) -> None:
    chat = Chat(engine=engine, script=recalling(name))
    agent(chat, AgentKVMiddleware(keep_images=1)).invoke(LOOK, THREAD)
    assert tool_words(chat.asked[-1].messages)[-1] == "image 1:\n image"


@pytest.mark.parametrize("name", ["9", "3", "the kitchen", ""])
def test_a_name_of_nothing_evicted_is_an_error_of_the_tool(engine: Engine, name: str) -> None:
    """3 is the one that still stands in the list."""
    chat = Chat(engine=engine, script=recalling(name))
    said = agent(chat, AgentKVMiddleware(keep_images=1)).invoke(LOOK, THREAD)["messages"]
    answer = said[-2]
    assert answer.status == "error"
    assert answer.text == f"Nothing evicted is called {name!r}. Numbers of what is: 1, 2."
    assert said[-1].text == "Seen."


def test_a_recalled_image_is_not_encoded_again(engine: Engine) -> None:
    chat = Chat(engine=engine, script=calling(lambda done: call("look", place=done) if done < 3 else "Seen."))
    graph = agent(chat, AgentKVMiddleware(keep_images=1, policy="fast"))
    graph.invoke(LOOK, THREAD)
    runs = engine.tower.runs  # type: ignore[attr-defined]
    chat.script = calling(lambda done: call(RECALL, name="1") if done == 3 else "Seen.")
    said = graph.invoke({"messages": [HumanMessage("What was in the first room?")]}, THREAD)["messages"]
    assert tool_words(chat.asked[-1].messages)[-1] == "image 1:\n image"
    assert engine.tower.runs == runs  # type: ignore[attr-defined]
    assert said[-1].usage_metadata["input_token_details"]["agentkv_patched"] > 0


def test_of_two_recalls_the_last_one_counts(engine: Engine) -> None:
    def step(done: int) -> str:
        if done in (2, 3):
            return call(RECALL, name="1")
        return call("look", place=done) if done < 2 else "Seen."

    chat = Chat(engine=engine, script=calling(step))
    agent(chat, AgentKVMiddleware(keep_images=1)).invoke(LOOK, THREAD)
    assert tool_words(chat.asked[-1].messages)[2:] == [
        f"[{RECALL}: 1 is not shown here any more]",
        "image 1:\n image",
    ]


def test_checkpoints_hold_strings_and_another_process_goes_on(engine: Engine) -> None:
    """Under a serializer that refuses all but plain values and messages, an agent that shares nothing with
    the first but the saver sees the recalled image, and its window is what a fresh one would be."""
    saver = InMemorySaver(serde=JsonPlusSerializer(allowed_msgpack_modules=None))
    first = Chat(engine=engine, script=recalling("2"))
    agent(first, AgentKVMiddleware(keep_images=1), checkpointer=saver).invoke(LOOK, THREAD)
    kept = [found.checkpoint["channel_values"] for found in saver.list(THREAD)]
    assert {type(leaf) for leaf in case.leaves(kept)} <= {str, int, float, bool, type(None), Send}
    newest = kept[0]
    assert newest["agentkv_window"] == case.handle(newest["messages"][-1])
    assert newest["agentkv_evicted"] == [1, 2]
    assert sorted(newest["agentkv_numbers"].values()) == [1, 2, 3]

    second = Chat(engine=engine, script=case.saying("Still there."))
    graph = agent(second, AgentKVMiddleware(keep_images=1), checkpointer=saver)
    said = graph.invoke({"messages": [HumanMessage("And now?")]}, THREAD)["messages"]
    assert said[-1].response_metadata["agentkv"]["went"].startswith("opened")
    assert tool_words(second.asked[0].messages) == [card(1), card(2), "image", "image 2:\n image"]
    assert case.held(second, "t", said[-1]) == case.rendered(second, second.asked[0], said[-1])


async def test_all_of_it_without_blocking(engine: Engine) -> None:
    chat, store = Chat(engine=engine, script=recalling("1")), AgentKVStore(MemoryStore(), tenant="ada")
    graph = agent(chat, AgentKVMiddleware(keep_images=1, namespace=("cards",)), store=store)
    said = (await graph.ainvoke(LOOK, THREAD))["messages"]
    assert tool_words(chat.asked[-1].messages) == [card(1), card(2), "image", "image 1:\n image"]
    assert {found.key for found in await store.asearch(("cards", "t"))} == {"1", "2"}
    assert case.held(chat, "t", said[-1]) == case.rendered(chat, chat.asked[-1], said[-1])


def test_what_another_edit_cleared_comes_back_all_the_same(engine: Engine) -> None:
    """The model's list is cleared in front of this middleware; the state has it still."""

    def step(done: int) -> str:
        return call("read", page=done) if done < 3 else call(RECALL, name="1") if done == 3 else "Read."

    chat = Chat(engine=engine, script=calling(step))
    clearing = ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=1, keep=1)])
    agent(chat, clearing, AgentKVMiddleware(keep_results=1), tools=[case.read]).invoke(LOOK, THREAD)
    assert tool_words(chat.asked[-1].messages)[-1].startswith("result of read 1:\n Page 0")
