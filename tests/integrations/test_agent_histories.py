"""Histories that branch, shrink, run side by side or break off: each goes on as a fresh window would."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    SummarizationMiddleware,
)
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    trim_messages,
)
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Send
from langmem.short_term import RunningSummary, summarize_messages
from typing_extensions import TypedDict

from agentkv import Engine
from agentkv.integrations import AgentKVMiddleware
from agentkv.integrations.answering import Request
from tests.integrations import agents_case as case
from tests.integrations.agents_case import Chat, call, calling

FREE = 6
"""Tokens that the model says by itself: enough to tell one window from another."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with case.engine() as built:
        yield built


@tool
def read(page: int) -> str:
    """Read a page."""
    return f"Page {page} tells how the {page}th king counted his sheep. " * 4


def config(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


def user(text: str) -> Any:
    return {"messages": [HumanMessage(text)]}


def long(number: int) -> str:
    return (
        f"In room {number} there are {number + 2} chairs, a table and a lamp that nobody has lit for years. "
    )


def assert_as_fresh(chat: Chat, thread: str, answer: AIMessage) -> None:
    """The window of the newest answer holds what a new one would."""
    assert case.held(chat, thread, answer) == case.rendered(chat, chat.asked[-1], answer)


def assert_as_told(chat: Chat, thread: str, answer: AIMessage, request: Request | None = None) -> None:
    """The window holds its list, and what the model said next is what it says to that list from nothing."""
    request = request or chat.asked[-1]
    assert answer.text == case.spoken(chat, request, FREE)
    assert case.held(chat, thread, answer) == case.stood_for(chat, request, answer)


class Asked(TypedDict):
    messages: list[AnyMessage]
    found: Annotated[list[tuple[str, AnyMessage]], operator.add]


@pytest.mark.parametrize("middleware", [[], [AgentKVMiddleware(keep_images=1)]], ids=["plain", "middleware"])
def test_each_branch_of_time_travel_has_its_own_window(engine: Engine, middleware: list[Any]) -> None:
    chat = Chat(engine=engine, script=case.free, max_tokens=FREE)
    agent = create_agent(chat, [], middleware=middleware, checkpointer=InMemorySaver())
    for number in range(3):
        agent.invoke(user(long(number)), config("t"))
    history = [state for state in agent.get_state_history(config("t")) if not state.next]
    assert [len(state.values["messages"]) for state in history] == [6, 4, 2]
    went = list[str]()
    for state, question in zip(history, ("And the lamp?", "And the table?", "And the chairs?"), strict=True):
        said = agent.invoke(user(question), state.config)["messages"]
        assert len(said) == len(state.values["messages"]) + 2
        assert_as_told(chat, "t", said[-1])
        assert case.cached(said[-1]) > 0
        went.append(said[-1].response_metadata["agentkv"]["went"])
    assert went == ["went on", *["forked: the window went on since"] * 2]
    assert len(chat.threads.handles("t")) == 3


def test_branches_that_run_at_once_share_no_window(engine: Engine) -> None:
    """Three Sends of one thread, from one answer on."""

    chat = Chat(engine=engine, script=case.free, max_tokens=FREE)

    def first(state: Asked) -> Any:
        return {"messages": [*state["messages"], chat.invoke(state["messages"])]}

    def branch(state: Any) -> Any:
        return {"found": [(state["ask"], chat.invoke([*state["messages"], HumanMessage(state["ask"])]))]}

    def spread(state: Asked) -> list[Send]:
        asks = ("The chairs?", "The tables?", "The lamps?")
        return [Send("branch", {"messages": state["messages"], "ask": ask}) for ask in asks]

    graph = StateGraph(Asked)
    graph.add_node("first", first)
    graph.add_node("branch", branch)
    graph.add_edge(START, "first")
    graph.add_conditional_edges("first", spread, ["branch"])
    graph.add_edge("branch", END)
    out = graph.compile(checkpointer=InMemorySaver()).invoke(
        {"messages": [HumanMessage(long(1))], "found": []}, config("t")
    )
    requests = {request.messages[-1].text: request for request in chat.asked}
    assert len(out["found"]) == 3
    for ask, answer in out["found"]:
        assert_as_told(chat, "t", answer, requests[ask])


def test_two_threads_at_once_do_not_meet(engine: Engine) -> None:
    chat = Chat(engine=engine, script=case.free, max_tokens=FREE)
    agent = create_agent(chat, [], middleware=[AgentKVMiddleware()], checkpointer=InMemorySaver())

    def talk(thread: int) -> list[BaseMessage]:
        for turn in range(3):
            said = agent.invoke(user(f"{long(turn)}I am guest {thread}."), config(str(thread)))
        return list(said["messages"])

    with ThreadPoolExecutor(2) as pool:
        talks = list(pool.map(talk, range(2)))
    for thread, said in enumerate(talks):
        (last,) = (r for r in chat.asked if list(r.messages) == said[:-1])
        assert_as_told(chat, str(thread), said[-1], last)


def talked(chat: Chat, turns: int = 4) -> Any:
    """A graph of one node whose thread "t" has had this many turns."""

    def answer(state: MessagesState) -> Any:
        return {"messages": [chat.invoke([SystemMessage("You know this house."), *state["messages"]])]}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    compiled = graph.compile(checkpointer=InMemorySaver())
    for number in range(turns):
        compiled.invoke(user(long(number) * 2), config("t"))
    return compiled


def test_messages_that_are_removed_leave_the_window(engine: Engine) -> None:
    chat = Chat(engine=engine, script=case.replying, policy="balanced")
    graph = talked(chat)
    said = graph.get_state(config("t")).values["messages"]
    graph.update_state(config("t"), {"messages": [RemoveMessage(id=m.id) for m in said[2:4]]})
    answer = graph.invoke(user("What is left?"), config("t"))["messages"][-1]
    assert len(chat.asked[-1].messages) == 1 + 8 - 2 + 1
    assert_as_fresh(chat, "t", answer)
    assert case.cached(answer) > case.formed(answer)


def test_a_list_that_is_trimmed_goes_on(engine: Engine) -> None:
    """By the model's own count of tokens."""
    chat = Chat(engine=engine, script=case.replying, policy="balanced")
    said = [SystemMessage("You know this house.")]
    for number in range(6):
        said.append(HumanMessage(long(number) * 2))  # type: ignore[arg-type]
        kept = trim_messages(
            said, max_tokens=260, token_counter=chat, include_system=True, start_on="human", strategy="last"
        )
        answer = chat.invoke(kept, thread_id="t")
        said.append(answer)  # type: ignore[arg-type]
        assert_as_fresh(chat, "t", answer)
    assert len(kept) < len(said) - 1
    assert kept[0] is said[0]
    assert answer.response_metadata["agentkv"]["went"] == "went on"
    assert case.cached(answer) > 0


def summing_up(messages: Sequence[BaseMessage], tools: Sequence[str]) -> str:
    """A summary where one is asked for."""
    asked = "summary" in messages[-1].text.lower() or "context" in messages[-1].text[:200].lower()
    return "There were rooms with chairs." if asked else case.replying(messages, tools)


def test_a_summary_takes_the_place_of_what_it_sums_up(engine: Engine) -> None:
    """The same model writes it, in the middle of the same thread."""
    chat = Chat(engine=engine, script=summing_up, policy="balanced")
    summary = SummarizationMiddleware(chat, trigger=("messages", 6), keep=("messages", 4))
    agent = create_agent(chat, [], middleware=[summary], checkpointer=InMemorySaver())
    for number in range(3):
        agent.invoke(user(long(number) * 3), config("t"))
    said = agent.invoke(user(long(3) * 3), config("t"))["messages"]
    seen = chat.asked[-1].messages
    assert "There were rooms with chairs." in seen[0].text
    assert len(seen) < 7
    assert_as_fresh(chat, "t", said[-1])
    assert case.cached(said[-1]) > 0


def test_a_running_summary_of_langmem_does_so_too(engine: Engine) -> None:
    chat = Chat(engine=engine, script=summing_up, policy="balanced")
    said, running = list[Any](), None
    for number in range(5):
        said.append(HumanMessage(long(number) * 2, id=f"h{number}"))
        made = summarize_messages(
            said,
            running_summary=running,
            model=chat.bind(thread_id="summaries"),
            token_counter=chat.get_num_tokens_from_messages,
            max_tokens=300,
            max_tokens_before_summary=200,
            max_summary_tokens=40,
        )
        running = made.running_summary or running
        answer = chat.invoke(made.messages, thread_id="t")
        said.append(answer)
        assert_as_fresh(chat, "t", answer)
    assert isinstance(running, RunningSummary)
    assert len(made.messages) < len(said) - 1
    assert case.cached(answer) > 0


def test_tool_results_that_are_cleared_leave_the_window(engine: Engine) -> None:
    chat = Chat(
        engine=engine,
        policy="balanced",
        script=calling(lambda done: call("read", page=done) if done < 4 else "Read."),
    )
    edit = ClearToolUsesEdit(trigger=100, keep=2)
    agent = create_agent(
        chat, [read], middleware=[ContextEditingMiddleware(edits=[edit])], checkpointer=InMemorySaver()
    )
    said = agent.invoke(user("Read all pages."), config("t"))["messages"]
    assert [m.text for m in chat.asked[-1].messages if m.type == "tool"].count("[cleared]") == 2
    assert_as_fresh(chat, "t", said[-1])
    assert case.cached(said[-1]) > case.formed(said[-1])


def test_another_model_takes_a_thread_over(engine: Engine) -> None:
    """And gives it back."""
    saver = InMemorySaver()
    mine = Chat(engine=engine, script=case.free, max_tokens=FREE)
    with case.engine(seed=1) as second:
        other = Chat(engine=second, script=case.free, max_tokens=FREE)
        agents = [
            create_agent(chat, [], middleware=[AgentKVMiddleware(keep_images=1)], checkpointer=saver)
            for chat in (mine, other)
        ]
        agents[0].invoke(user(long(0)), config("t"))
        answer = agents[1].invoke(user(long(1)), config("t"))["messages"][-1]
        assert answer.response_metadata["agentkv"]["went"] == (
            "opened: the thread's window belongs to another model"
        )
        assert answer.text == case.spoken(other, other.asked[-1], FREE, seed=1)
    answer = agents[0].invoke(user(long(2)), config("t"))["messages"][-1]
    assert_as_told(mine, "t", answer)
    assert case.cached(answer) > 0, "its own window of the thread is still known, by its content"


def test_a_stream_that_is_closed_early_leaves_a_window_that_goes_on(engine: Engine) -> None:
    chat = Chat(engine=engine, script=case.free, max_tokens=FREE)
    first = HumanMessage(long(0))
    answer = chat.invoke([first], thread_id="t")
    stream = chat.stream([first, answer, HumanMessage(long(1))], thread_id="t")
    next(stream)
    next(stream)
    stream.close()
    again = chat.invoke([first, answer, HumanMessage(long(2))], thread_id="t")
    assert_as_told(chat, "t", again)
    assert case.cached(again) > 0


@pytest.mark.parametrize("steps", [0, 2])
async def test_a_task_that_is_cancelled_leaves_a_window_that_goes_on(engine: Engine, steps: int) -> None:
    chat = Chat(engine=engine, script=case.free, max_tokens=40)
    agent = create_agent(chat, [], middleware=[AgentKVMiddleware()], checkpointer=InMemorySaver())
    await agent.ainvoke(user(long(0)), {**config("t"), "recursion_limit": 10})
    told = asyncio.Event()

    async def listen() -> None:
        count = 0
        async for _ in agent.astream(user(long(1)), config("t"), stream_mode="messages"):
            count += 1
            if count >= steps:
                told.set()

    task = asyncio.create_task(listen())
    if steps:
        await told.wait()
    else:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    chat.max_tokens = FREE
    said = (await agent.ainvoke(user(long(2)), config("t")))["messages"]
    assert_as_told(chat, "t", said[-1])
