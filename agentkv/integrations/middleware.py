"""`AgentKVMiddleware`: which images and tool results an agent's model sees, and how it gets one back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from operator import or_
from typing import Annotated, Any, NotRequired

from agentkv_orchestrator.policy import Policy
from langchain.agents.middleware.types import (
    AgentMiddleware,
    AgentState,
    ContextT,
    ExtendedModelResponse,
    ModelRequest,
    ModelResponse,
    PrivateStateAttr,
    ResponseT,
)
from langchain.tools import ToolRuntime
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.tools import StructuredTool, ToolException
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.types import Command

from agentkv.errors import InvalidInput
from agentkv.integrations import evictable
from agentkv.integrations.answering import Request
from agentkv.integrations.cards import FIRST_WORDS, ChunkCard
from agentkv.integrations.chat import ChatAgentKV
from agentkv.integrations.evictable import RECALL, Evictable, SortedOut, sorted_out

HINTS = "agentkv"
"""Key of a message's additional_kwargs that `agentkv.integrations.content.Hints` are read from."""

_RECALLED = "agentkv_recalled"
"""Key of a recall's artifact: the number of what it shows."""

_SETTINGS = frozenset(Request.model_fields) - {"messages", "tools", "tool_choice", "thread_id", "owner"}

_HELP = (
    "Show an image or a tool's result again whose place holds a card like [image 3: evicted]. "
    "name: the number on the card."
)


class AgentKVState(AgentState[Any]):
    """What the middleware keeps in a checkpoint: strings and ints."""

    agentkv_window: NotRequired[Annotated[str, PrivateStateAttr]]
    """Handle of the window of the newest answer."""
    agentkv_numbers: NotRequired[Annotated[dict[str, int], PrivateStateAttr, or_]]
    """Numbers on cards, by a digest of what they stand for."""
    agentkv_evicted: NotRequired[Annotated[list[int], PrivateStateAttr]]
    """Numbers of what the model was last shown as a card."""


class AgentKVMiddleware(AgentMiddleware[AgentKVState, ContextT, ResponseT]):
    """Shows a `ChatAgentKV` the newest images and tool results, and cards for older ones.

    Only what the model sees is edited; the messages of the state stay whole. From call to call the list
    differs where something left, and the agent may call ``recall_chunk`` to see it again, at the end.

    keep_images, keep_results: how many of the newest stay; None: all. Blocks with ``cache_control`` stay as
    well, and are not counted. recall_turns: answers after which what was recalled leaves again.
    exclude_tools: whose results stay. order_free_tools: whose results may change places with neighbours of
    that kind, such as documents that were found. policy, settings: passed to each call of a ChatAgentKV,
    ``settings`` such as max_tokens; what the request says goes before them. namespace: where in the graph's
    store it is told what left, under the thread's id and the number on the card; None: nowhere. Raises
    InvalidInput.
    """

    state_schema = AgentKVState

    def __init__(
        self,
        *,
        policy: str | Policy | None = None,
        settings: Mapping[str, Any] | None = None,
        keep_images: int | None = None,
        keep_results: int | None = None,
        recall_turns: int = 3,
        exclude_tools: Sequence[str] = (),
        order_free_tools: Sequence[str] = (),
        namespace: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__()
        _require_counts(keep_images=keep_images, keep_results=keep_results, recall_turns=recall_turns)
        self.settings = _checked({**({} if policy is None else {"policy": policy}), **(settings or {})})
        self.keep_images, self.keep_results = keep_images, keep_results
        self.recall_turns, self.exclude_tools = recall_turns, tuple(exclude_tools)
        self.order_free_tools = frozenset(order_free_tools)
        self.namespace = namespace
        evicts = keep_images is not None or keep_results is not None
        self.tools = [self._tool()] if evicts else []

    def before_model(self, state: AgentKVState, runtime: Runtime[ContextT]) -> dict[str, Any]:
        """The handle, new numbers and what is evicted, into the state."""
        update, left = self._before(state)
        if self.namespace is not None:
            store, thread = _store(runtime), _thread(runtime)
            for key, card in left.items():
                store.put((*self.namespace, thread), key, card.model_copy(update={"thread": thread}).value())
        return update

    async def abefore_model(self, state: AgentKVState, runtime: Runtime[ContextT]) -> dict[str, Any]:
        update, left = self._before(state)
        if self.namespace is not None:
            store, thread = _store(runtime), _thread(runtime)
            for key, card in left.items():
                await store.aput(
                    (*self.namespace, thread), key, card.model_copy(update={"thread": thread}).value()
                )
        return update

    def wrap_model_call(
        self,
        request: ModelRequest[ContextT],
        handler: Callable[[ModelRequest[ContextT]], ModelResponse[ResponseT]],
    ) -> ExtendedModelResponse[ResponseT]:
        """The model with its settings, shown cards and recalls; its window's handle into the state."""
        shown, fresh = self._shown(request)
        return _answered(handler(shown), fresh)

    async def awrap_model_call(
        self,
        request: ModelRequest[ContextT],
        handler: Callable[[ModelRequest[ContextT]], Awaitable[ModelResponse[ResponseT]]],
    ) -> ExtendedModelResponse[ResponseT]:
        shown, fresh = self._shown(request)
        return _answered(await handler(shown), fresh)

    def _before(self, state: AgentKVState) -> tuple[dict[str, Any], dict[str, ChunkCard]]:
        """An update of the state, and cards by number of what left since the last call."""
        messages = state["messages"]
        fresh, _, gone = self._sorted_out(messages, _numbers(state))
        update: dict[str, Any] = {"agentkv_numbers": fresh, "agentkv_evicted": sorted(dict(gone))}
        if (handle := evictable.newest_handle(messages)) is not None:
            update["agentkv_window"] = handle
        before = set(state.get("agentkv_evicted", ()))
        left = {str(n): _card(n, item, messages) for n, item in gone if n not in before}
        return update, left

    def _shown(self, request: ModelRequest[ContextT]) -> tuple[ModelRequest[ContextT], dict[str, int]]:
        """What the model is asked, and numbers that the state has not got yet: other middleware may have
        changed the list since."""
        known = _numbers(request.state)
        fresh, there, gone = self._sorted_out(request.messages, known)
        if not there.keys() >= {number for m in request.messages if (number := _recalled(m)) is not None}:
            _, kept, _ = self._sorted_out(request.state["messages"], {**known, **fresh})
            there = {**kept, **there}  # what another edit cleared, the state has still
        seen = evictable.with_cards(request.messages, gone, recall=bool(self.tools))
        messages = [self._hinted(message) for message in self._with_recalled(seen, there)]
        settings = request.model_settings
        if isinstance(request.model, ChatAgentKV):
            settings = {**self.settings, **settings}
        return request.override(messages=messages, model_settings=settings), fresh

    def _with_recalled(
        self, messages: Sequence[AnyMessage], there: Mapping[int, Evictable]
    ) -> list[AnyMessage]:
        """The list with things in the place of the notes that recalled them, as long as they are shown."""
        found, turns, done = list(messages), 0, set[int]()
        for place in reversed(range(len(messages))):  # of several recalls of one thing the last one counts
            message = messages[place]
            turns += isinstance(message, AIMessage)
            number = _recalled(message)
            if number is None:
                continue
            item = there.get(number)
            if item is not None and turns < self.recall_turns and number not in done:
                done.add(number)
                content = [{"type": "text", "text": f"{item.noun} {number}:\n"}, *item.content]
            else:
                content = [{"type": "text", "text": f"[{RECALL}: {number} is not shown here any more]"}]
            found[place] = message.model_copy(update={"content": content})
        return found

    def _hinted(self, message: AnyMessage) -> AnyMessage:
        """With the hint of an order-free tool, unless the message has hints of its own or is to be kept."""
        free = isinstance(message, ToolMessage) and message.name in self.order_free_tools
        if not free or evictable.pinned(message):
            return message
        hints = {HINTS: {"order_free": True}, **message.additional_kwargs}
        return message.model_copy(update={"additional_kwargs": hints})

    def _sorted_out(self, messages: Sequence[AnyMessage], known: Mapping[str, int]) -> SortedOut:
        return sorted_out(messages, self.keep_images, self.keep_results, self.exclude_tools, known)

    def _tool(self) -> StructuredTool:
        return StructuredTool.from_function(
            self._recall,
            name=RECALL,
            description=_HELP,
            response_format="content_and_artifact",
            handle_tool_error=True,
        )

    def _recall(self, name: str, runtime: ToolRuntime) -> tuple[str, dict[str, int]]:
        """A note, in whose place the thing itself is shown from the next call on."""
        _, _, left = self._sorted_out(runtime.state["messages"], _numbers(runtime.state))
        gone = dict(left)
        names = {wanted: n for n, item in left for wanted in (str(n), f"{item.noun} {n}".lower())}
        number = names.get(name.strip().lower())
        if number is None:
            there = ", ".join(map(str, sorted(gone))) or "none"
            raise ToolException(f"Nothing evicted is called {name!r}. Numbers of what is: {there}.")
        return f"{gone[number].noun} {number} is shown again.", {_RECALLED: number}


def _numbers(state: Mapping[str, Any]) -> dict[str, int]:
    found: dict[str, int] = state.get("agentkv_numbers", {})
    return found


def _recalled(message: AnyMessage) -> int | None:
    """The number that a recall's answer shows."""
    if not isinstance(message, ToolMessage) or message.name != RECALL:
        return None
    return message.artifact.get(_RECALLED) if isinstance(message.artifact, dict) else None


def _answered(
    response: ModelResponse[ResponseT], fresh: Mapping[str, int]
) -> ExtendedModelResponse[ResponseT]:
    update: dict[str, Any] = {"agentkv_numbers": dict(fresh)}
    if (handle := evictable.newest_handle(response.result)) is not None:
        update["agentkv_window"] = handle
    return ExtendedModelResponse(response, Command(update=update))


def _card(number: int, item: Evictable, messages: Sequence[AnyMessage]) -> ChunkCard:
    """What a store is told of what left; images are found by the words beside them."""
    words = " ".join((item.text or messages[item.place].text).split())[:FIRST_WORDS]
    return ChunkCard(kind=item.noun, words=words, tags=[f"{RECALL}('{number}')"])


def _thread(runtime: Runtime[Any]) -> str:
    info = runtime.execution_info
    thread = (info.thread_id if info is not None else None) or "no thread"
    return thread.replace("%", "%25").replace(".", "%2E")  # a store's namespaces have no periods


def _store(runtime: Runtime[Any]) -> BaseStore:
    if runtime.store is None:
        raise InvalidInput(
            got="namespace= and a graph without a store",
            expected="a graph that was compiled with one",
            do="pass store= to create_agent, or leave namespace out",
        )
    return runtime.store


def _require_counts(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 0):
            raise InvalidInput(got=f"{name}={count!r}", expected="a whole number from 0 on", do="pass one")


def _checked(settings: dict[str, Any]) -> dict[str, Any]:
    if unknown := sorted(set(settings) - _SETTINGS):
        raise InvalidInput(
            got=f"settings {unknown}", expected=f"some of {sorted(_SETTINGS)}", do="leave it out"
        )
    if "policy" in settings:
        settings["policy"] = Policy.parse(settings["policy"])
    return settings
