"""Where a call comes from: the LangGraph thread and node of the config that it runs under."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config


def caller(config: RunnableConfig | None = None) -> dict[str, str]:
    """thread_id and owner, the node; "" outside of a thread or a graph. config: as given to a call, on top of
    the one that the call runs under."""
    found = ensure_config(config)
    thread = found.get("configurable", {}).get("thread_id", "")
    path = str((found.get("metadata") or {}).get("langgraph_checkpoint_ns") or "")
    nodes = [part.partition(":")[0] for part in path.split("|")]  # behind the colon stands a task's id
    return {"thread_id": "" if thread is None else str(thread), "owner": "|".join(nodes)}


class Called(BaseChatModel):
    """Hands the config's thread and node to the model as options; LangChain hands on callbacks alone."""

    def invoke(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AIMessage:
        return super().invoke(input, config, stop=stop, **{**caller(config), **kwargs})

    async def ainvoke(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AIMessage:
        return await super().ainvoke(input, config, stop=stop, **{**caller(config), **kwargs})

    def stream(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> Iterator[AIMessageChunk]:
        return super().stream(input, config, stop=stop, **{**caller(config), **kwargs})

    async def astream(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[AIMessageChunk]:
        async for chunk in super().astream(input, config, stop=stop, **{**caller(config), **kwargs}):
            yield chunk
