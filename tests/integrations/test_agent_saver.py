"""Deleting checkpoints closes windows: the wrapper is a checkpointer like the one inside it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from agentkv import Engine
from agentkv.integrations import AgentKVMiddleware, ChatAgentKV, CollectingSaver
from tests.integrations import agents_case as case
from tests.integrations.agents_case import Chat


class Whole(InMemorySaver):
    """What InMemorySaver leaves out of a checkpointer's interface, plainly."""

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        for found in list(self.list(None)):
            if found.metadata.get("run_id") in run_ids:
                self._remove(found.config)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        for ns, found in list(self.storage[source_thread_id].items()):
            self.storage[target_thread_id][ns].update(found)
        for (thread, *place), writes in list(self.writes.items()):
            if thread == source_thread_id:
                self.writes[(target_thread_id, place[0], place[1])] = dict(writes)
        for (thread, *key), blob in list(self.blobs.items()):
            if thread == source_thread_id:
                self.blobs[(target_thread_id, key[0], key[1], key[2])] = blob

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        for thread in thread_ids:
            newest = defaultdict[str, str](str)
            found = list(self.list({"configurable": {"thread_id": thread}}))
            for config in (f.config["configurable"] for f in found):
                ns, checkpoint = config["checkpoint_ns"], config["checkpoint_id"]
                newest[ns] = max(newest[ns], checkpoint)
            for one in found:
                config = one.config["configurable"]
                if strategy == "delete" or newest[config["checkpoint_ns"]] != config["checkpoint_id"]:
                    self._remove(one.config)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        self.delete_for_runs(run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self.copy_thread(source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        self.prune(thread_ids, strategy=strategy)

    def _remove(self, config: Any) -> None:
        place = config["configurable"]
        thread, ns, checkpoint = place["thread_id"], place["checkpoint_ns"], place["checkpoint_id"]
        self.storage[thread][ns].pop(checkpoint, None)
        self.writes.pop((thread, ns, checkpoint), None)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with case.engine() as built:
        yield built


@pytest.fixture
def chat(engine: Engine) -> Chat:
    return Chat(engine=engine, script=case.replying)


def config(thread: str, run: str = "") -> Any:
    return {"configurable": {"thread_id": thread}, "metadata": {"run_id": run} if run else {}}


def agent(chat: Chat, saver: Any) -> Any:
    return create_agent(chat, [], middleware=[AgentKVMiddleware()], checkpointer=saver)


def user(text: str) -> Any:
    return {"messages": [HumanMessage(text)]}


@pytest.mark.parametrize("inside", [InMemorySaver, Whole])
async def test_it_is_a_checkpointer(inside: type[InMemorySaver], chat: Chat) -> None:
    """By langgraph's own suite; what InMemorySaver cannot do is told apart from what was done wrong."""
    extended = {"delete_for_runs", "copy_thread", "prune"}

    @checkpointer_test(name="CollectingSaver", skip_capabilities=set() if inside is Whole else extended)
    async def wrapped() -> AsyncIterator[CollectingSaver]:
        yield CollectingSaver(inside(), chat)

    report = await validate(wrapped)  # type: ignore[arg-type]
    failures = [failure for result in report.results.values() for failure in result.failures]
    assert not failures
    passed = {name for name, result in report.results.items() if result.passed}
    base = {"put", "put_writes", "get_tuple", "list", "delete_thread"}
    assert passed == (base | extended if inside is Whole else base)


def test_a_deleted_thread_has_no_window(chat: Chat) -> None:
    saver = CollectingSaver(InMemorySaver(), chat)
    for thread in ("a", "b"):
        agent(chat, saver).invoke(user("Hello."), config(thread))
    saver.delete_thread("a")
    assert saver.get_tuple(config("a")) is None
    assert (len(chat.threads.handles("a")), len(chat.threads.handles("b"))) == (0, 1)
    answer = agent(chat, saver).invoke(user("Hello again."), config("a"))["messages"]
    assert len(answer) == 2


async def test_a_thread_is_deleted_without_blocking(chat: Chat) -> None:
    saver = CollectingSaver(InMemorySaver(), chat)
    await agent(chat, saver).ainvoke(user("Hello."), config("a"))
    await saver.adelete_thread("a")
    assert await saver.aget_tuple(config("a")) is None
    assert not chat.threads.handles("a")


def branched(chat: Chat, saver: CollectingSaver) -> tuple[str, str]:
    """A thread of two branches: handles of the older and of the newer one, by runs "old" and "new"."""
    graph = agent(chat, saver)
    graph.invoke(user("Hello."), config("t", run="root"))
    root = graph.get_state(config("t")).config
    old = graph.invoke(user("First way."), {**root, "metadata": {"run_id": "old"}})["messages"][-1]
    new = graph.invoke(user("Second way."), {**root, "metadata": {"run_id": "new"}})["messages"][-1]
    assert chat.threads.handles("t") == [case.handle(old), case.handle(new)]
    return case.handle(old), case.handle(new)


@pytest.mark.parametrize("blocks", [True, False])
async def test_branches_that_were_pruned_have_no_window(chat: Chat, blocks: bool) -> None:
    saver = CollectingSaver(Whole(), chat)
    _, new = branched(chat, saver)
    if blocks:
        saver.prune(["t"])
    else:
        await saver.aprune(["t"])
    assert chat.threads.handles("t") == [new]
    said = agent(chat, saver).invoke(user("Go on."), config("t"))["messages"]
    assert said[-1].response_metadata["agentkv"]["went"] == "went on"


@pytest.mark.parametrize("blocks", [True, False])
@pytest.mark.parametrize("run", ["old", "new"])
async def test_runs_that_were_deleted_have_no_window(chat: Chat, blocks: bool, run: str) -> None:
    """The newer window was forked from the older one, which had gone on: both lead to the root."""
    saver = CollectingSaver(Whole(), chat)
    old, new = branched(chat, saver)
    if blocks:
        saver.delete_for_runs([run])
    else:
        await saver.adelete_for_runs([run])
    assert {"old": new, "new": old}[run] in chat.threads.handles("t")
    saver.delete_for_runs(["root", "old", "new"])
    assert not chat.threads.handles("t")


def test_a_window_that_went_on_since_stays_for_what_is_left(chat: Chat) -> None:
    """Its newest answer is deleted; the one before is not."""
    saver = CollectingSaver(Whole(), chat)
    for run in ("one", "two"):
        last = agent(chat, saver).invoke(user(f"Hello, {run}."), config("t", run=run))["messages"][-1]
    saver.delete_for_runs(["two"])
    assert chat.threads.handles("t") == [case.handle(last)]
    said = agent(chat, saver).invoke(user("Go on."), config("t"))["messages"]
    assert len(said) == 4
    assert said[-1].response_metadata["agentkv"]["went"] == "forked: the window went on since"


def test_a_copied_thread_opens_a_window_of_its_own(chat: Chat) -> None:
    saver = CollectingSaver(Whole(), chat)
    agent(chat, saver).invoke(user("Hello."), config("a"))
    saver.copy_thread("a", "b")
    said = agent(chat, saver).invoke(user("Go on."), config("b"))["messages"]
    assert len(said) == 4
    assert case.held(chat, "b", said[-1]) == case.rendered(chat, chat.asked[-1], said[-1])
    saver.delete_thread("a")
    assert len(chat.threads.handles("b")) == 1


def test_what_the_inner_saver_cannot_do_is_said(chat: Chat) -> None:
    saver = CollectingSaver(InMemorySaver(), chat)
    agent(chat, saver).invoke(user("Hello."), config("t"))
    with pytest.raises(NotImplementedError):
        saver.prune(["t"])
    assert len(chat.threads.handles("t")) == 1


def test_an_allowlist_reaches_the_inner_saver(chat: Chat) -> None:
    saver = CollectingSaver(InMemorySaver(serde=JsonPlusSerializer(allowed_msgpack_modules=None)), chat)
    clone = saver.with_allowlist([("a", "B")])
    assert clone.saver is not saver.saver
    assert clone.chats == (chat,)


def test_deleting_builds_no_engine() -> None:
    """Nor does closing a chat model that was never asked anything."""
    unused = ChatAgentKV()
    CollectingSaver(InMemorySaver(), unused).delete_thread("t")
    unused.close()
    assert "runtime" not in unused.__dict__
