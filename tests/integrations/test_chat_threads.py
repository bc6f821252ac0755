"""Which thread a call belongs to, however it is made, and what the answer says of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from agentkv import Engine
from agentkv.errors import InvalidInput, TooLong
from agentkv.integrations.answering import METADATA
from agentkv.integrations.chat import ChatAgentKV
from agentkv.integrations.templates import HERMES
from tests.integrations.agents_case import THREAD, engine

ASKED: list[BaseMessage] = [SystemMessage("Be brief."), HumanMessage("Where is the mill, and who built it?")]


def _whole(chunks: list[Any]) -> Any:
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    return whole


async def _astreamed(chat: ChatAgentKV) -> Any:
    return _whole([chunk async for chunk in chat.astream(ASKED, THREAD)])


CALLS: dict[str, Callable[[ChatAgentKV], Any]] = {
    "invoke": lambda chat: chat.invoke(ASKED, THREAD),
    "stream": lambda chat: _whole(list(chat.stream(ASKED, THREAD))),
    "ainvoke": lambda chat: asyncio.run(chat.ainvoke(ASKED, THREAD)),
    "astream": lambda chat: asyncio.run(_astreamed(chat)),
    "batch": lambda chat: chat.batch([ASKED], THREAD)[0],
    "bound": lambda chat: chat.bind(max_tokens=3).invoke(ASKED, THREAD),
    "option": lambda chat: chat.invoke(ASKED, thread_id="t"),
}


@pytest.mark.parametrize("how", CALLS)
def test_every_way_to_call_knows_its_thread(how: str) -> None:
    with engine() as built:
        chat = ChatAgentKV(engine=built, chat_template=HERMES, max_tokens=3)
        said = CALLS[how](chat)
        handle = said.response_metadata[METADATA]["window"]
        assert chat.threads.handles("t") == [handle]
        assert chat.window_of(said) is not None
        details = said.usage_metadata["input_token_details"]
        assert details["cache_creation"] == said.usage_metadata["input_tokens"]
        again = CALLS[how](chat)
        assert again.text == said.text
        assert again.usage_metadata["input_token_details"]["cache_read"] > 0
        assert chat.delete_thread("t") == 1
        assert chat.window_of(again) is None


@pytest.mark.parametrize(
    ("options", "said"),
    [({"top_k": 3}, "top_k"), ({"max_tokens": 0}, "max_tokens"), ({"policy": 3}, "policy")],
)
def test_an_option_that_there_is_not_is_refused(options: dict[str, Any], said: str) -> None:
    with engine() as built:
        chat = ChatAgentKV(engine=built, chat_template=HERMES, max_tokens=3)
        with pytest.raises(InvalidInput, match=said):
            chat.invoke(ASKED, **options)
        with pytest.raises(InvalidInput, match="messages"):
            chat.invoke([])
        assert len(chat.threads) == 0


def test_a_stop_text_ends_an_answer_and_a_length_is_told() -> None:
    with engine() as built:
        chat = ChatAgentKV(engine=built, chat_template=HERMES, max_tokens=6)
        free = chat.invoke(ASKED)
        assert free.response_metadata["finish_reason"] == "length"
        assert free.usage_metadata is not None
        assert free.usage_metadata["output_tokens"] == 6
        stop = free.text[2:5]
        cut = chat.invoke(ASKED, stop=[stop])
        assert cut.text == free.text[: free.text.index(stop)]
        assert cut.response_metadata["finish_reason"] == "stop"
        follow = chat.invoke([*ASKED, cut, HumanMessage("Go on.")])
        assert follow.usage_metadata is not None
        assert follow.usage_metadata["input_token_details"]["cache_read"] > 0


def test_a_refused_call_leaves_no_window_behind() -> None:
    """It would count as the one used last, and push out one with something in it."""
    with engine() as built:
        chat = ChatAgentKV(engine=built, chat_template=HERMES, max_tokens=3, max_windows=1, window_tokens=200)
        said = chat.invoke(ASKED, THREAD)
        with pytest.raises(TooLong):
            chat.invoke([HumanMessage("word " * 500)], thread_id="other")
        assert len(chat.threads) == 1
        assert chat.window_of(said) is not None


@pytest.mark.parametrize("thread", [0, 7])
def test_a_thread_may_be_a_number(thread: int) -> None:
    with engine() as built:
        chat = ChatAgentKV(engine=built, chat_template=HERMES, max_tokens=3)
        chat.invoke(ASKED, {"configurable": {"thread_id": thread}})
        assert chat.delete_thread(thread) == 1  # type: ignore[arg-type]


def test_of_two_first_calls_one_builds_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine() as built:
        made = list[float]()

        def slowly(*_: Any) -> Engine:
            made.append(time.monotonic())
            time.sleep(0.1)
            return built

        monkeypatch.setattr(Engine, "from_pretrained", slowly)
        chat = ChatAgentKV(chat_template=HERMES, max_tokens=3)
        with ThreadPoolExecutor(3) as callers:
            said = list(callers.map(lambda thread: chat.invoke(ASKED, thread_id=thread), "abc"))
        assert len(made) == 1
        assert len({answer.text for answer in said}) == 1
        assert sorted(chat.threads.handles(thread) != [] for thread in "abc") == [True] * 3


def test_counts_and_profile() -> None:
    with engine() as built:
        chat = ChatAgentKV(engine=built, chat_template=HERMES, max_tokens=3, window_tokens=500)
        said = chat.invoke(ASKED)
        assert said.usage_metadata is not None
        head = len(chat.get_token_ids(chat.template.marks.head))
        assert chat.get_num_tokens_from_messages(ASKED) == said.usage_metadata["input_tokens"] - head
        assert chat.profile is not None
        assert chat.profile["max_input_tokens"] == 500
        assert chat.profile["image_inputs"]
        assert isinstance(said, AIMessage)
