"""`ChatAgentKV`: a LangChain chat model over windows, which follow the message lists it is given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Generator, Iterator, Sequence
from functools import cached_property
from threading import RLock
from typing import Any

from agentkv_orchestrator.policy import Policy
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import LanguageModelInput, ModelProfile
from langchain_core.language_models.chat_models import LangSmithParams
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.outputs.chat_generation import merge_chat_generation_chunks
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from pydantic import ConfigDict, Field, PrivateAttr

from agentkv.engine import Engine
from agentkv.errors import InvalidInput
from agentkv.integrations.answering import METADATA, Answering, Request
from agentkv.integrations.calling import Called, caller
from agentkv.integrations.calls import Format, shown
from agentkv.integrations.grammar import Grammars
from agentkv.integrations.prompt import Prompts
from agentkv.integrations.structured import structured
from agentkv.integrations.template import ChatTemplate
from agentkv.integrations.threads import Threads
from agentkv.sampling import Guide
from agentkv.window import Window

_BUILDING = RLock()
"""Of two first calls at once one builds the engine, and the other waits for it."""


class ChatAgentKV(Called):
    """A chat model whose prompt is a window that is edited, not prefilled again.

    Give it an `Engine`, or a model to build one from. Survivors, holes, recalled, moved and edited messages
    are found by content in each list it is called with. A window is kept for each thread (the ``thread_id``
    of a LangGraph config) and branch.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid", populate_by_name=True)

    engine: Engine | None = Field(default=None, repr=False, exclude=True)
    """What computes. None: built from ``model`` at the first call."""
    model_name: str | None = Field(default=None, alias="model")
    """A model directory or hub id for an engine of its own; None for the embedded model."""
    policy: str | Policy = "balanced"
    """exact, balanced, fast, or a Policy; ``policy=`` of a call goes before it."""
    temperature: float = Field(default=0.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int | None = None
    max_tokens: int = Field(default=512, ge=1)
    """Tokens of an answer at most."""
    streaming: bool = False
    """Whether ``invoke`` streams for callbacks that listen."""
    stop: list[str] | None = None
    """Texts that end an answer; they are not part of it."""
    window_tokens: int | None = Field(default=None, ge=1)
    """Tokens of prompt and answer at most; None: what the model was built for. A longer list raises TooLong:
    trim it (trim_messages, AgentKVMiddleware)."""
    max_windows: int = Field(default=8, ge=1)
    """Windows that are kept between calls, of all threads together."""
    chat_template: str | None = Field(default=None, repr=False)
    """A Jinja template in the place of the model's own, such as `agentkv.integrations.templates.HERMES`."""

    _owned: Engine | None = PrivateAttr(default=None)

    @property
    def _llm_type(self) -> str:
        return "agentkv"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {
            "model_name": self._name,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            "max_tokens": self.max_tokens,
            "stop": self.stop,
            "policy": Policy.parse(self.policy).model_dump(),
        }

    @property
    def _name(self) -> str:
        if self.model_name is None and self.engine is not None:
            return self.engine.loaded.name
        return self.model_name or "SmolLM2-135M-Instruct"

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop, **kwargs)
        return LangSmithParams(
            **{**params, "ls_provider": "agentkv", "ls_model_name": kwargs.get("model") or self._name}
        )

    @cached_property
    def runtime(self) -> Engine:
        """The engine, built at the first use where none was given."""
        if self.engine is not None:
            return self.engine
        self._owned = Engine.from_pretrained(self.model_name)
        return self._owned

    @cached_property
    def template(self) -> ChatTemplate:
        """How the model writes messages. Raises UnsupportedMessage for a model without a template."""
        return ChatTemplate(self.runtime.tokenizer, self.chat_template)

    @cached_property
    def prompts(self) -> Prompts:
        return Prompts(self.runtime, self.template)

    @cached_property
    def threads(self) -> Threads:
        return Threads(self.runtime, self.max_windows, self.window_tokens)

    @property
    def _used(self) -> bool:
        """Whether there may be windows: asking for them would build an engine."""
        return "threads" in self.__dict__

    @cached_property
    def call_format(self) -> Format:
        """How the model writes tool calls. Raises UnsupportedMessage for a template without them."""
        return Format.of(self.template)

    @cached_property
    def grammars(self) -> Grammars:
        stops = self.runtime.template.stop_ids
        return Grammars(self.runtime.tokenizer, sorted(stops), self.runtime.vocabulary)

    def _resolve_model_profile(self) -> ModelProfile | None:
        """What is known of the model; without an engine, what holds for any."""
        profile = ModelProfile(
            name=self._name,
            max_output_tokens=self.max_tokens,
            text_inputs=True,
            image_url_inputs=False,
            pdf_inputs=False,
            audio_inputs=False,
            video_inputs=False,
            text_outputs=True,
            image_outputs=False,
            tool_calling=True,
            structured_output=True,
        )
        if self.engine is not None:
            images = bool(self.engine.tower.placeholder_ids)
            profile["max_input_tokens"] = self.window_tokens or self.engine.layout.max_positions
            profile["image_inputs"] = profile["image_tool_message"] = images
        return profile

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | dict[str, Any] | bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Tools for the model to call, through its own chat template.

        tool_choice: "auto" or None, the model decides; "any", "required" or True, an answer is a call, by a
        grammar; the name of a tool, a call of that one; "none", the tools are shown and not called. Raises
        UnsupportedMessage when called with a template that cannot write calls, InvalidInput for another
        choice and for what is no tool.
        """
        schemas = shown(tools)
        return super().bind(tools=schemas, tool_choice=_choice(tool_choice, schemas), **kwargs)

    def with_structured_output(
        self, schema: dict[str, Any] | type, *, include_raw: bool = False, **kwargs: Any
    ) -> Runnable[LanguageModelInput, Any]:
        """Answers as objects of a schema: a pydantic class, a TypedDict or a JSON schema.

        method: "json_schema" (default) or "json_mode", the answer is JSON of the schema, by a grammar;
        "function_calling", one call of a tool of this schema. include_raw: a dict of raw, parsed and
        parsing_error.
        """
        return structured(self, schema, include_raw, **kwargs)

    def get_num_tokens_from_messages(
        self, messages: list[BaseMessage], tools: Sequence[Any] | None = None
    ) -> int:
        """Tokens of these messages and tools in a window, every image as many as the model is shown."""
        return sum(m.tokens for m in self.prompts.messages(messages, shown(tools or ()), answer=False))

    def get_token_ids(self, text: str) -> list[int]:
        return list(self.runtime.tokenizer(text, add_special_tokens=False)["input_ids"])

    def window_of(self, answer: AIMessage) -> Window | None:
        """The window that this answer is the last one of, to `explain`, `audit` or look at: the next call may
        edit it, and one that was cancelled may have. None when it went on since or was given up."""
        said = answer.response_metadata.get(METADATA, {})
        return self.threads.at(said.get("window", ""))

    def delete_thread(self, thread_id: str) -> int:
        """Close the windows of a thread; how many there were. What the store has of its chunks stays there
        until it needs the room."""
        return self.threads.drop(str(thread_id)) if self._used else 0

    def keep_windows(self, thread_id: str, handles: Collection[str]) -> int:
        """Close the windows of a thread that none of these handles leads to; how many there were."""
        return self.threads.keep(str(thread_id), handles) if self._used else 0

    def close(self) -> None:
        """Close all windows, and the engine where it was built here."""
        if self._used:
            self.threads.close()
        if self._owned is not None:
            self._owned.close()

    def guide(self, request: Request) -> Guide | None:
        """What an answer may be: JSON of a schema, a call of a tool, one of both, or anything (None)."""
        schema, choice = request.response_format, request.tool_choice
        chosen = [tool for tool in request.tools if tool["function"]["name"] in request.callable]
        if chosen and choice is not None:
            return self.grammars.call(self.call_format, chosen)
        if chosen and schema is not None:
            return self.grammars.call(self.call_format, chosen, schema)
        return None if schema is None else self.grammars.json(schema)

    def _request(
        self, messages: list[BaseMessage], stop: list[str] | None, options: dict[str, Any]
    ) -> Request:
        defaults = {
            name: getattr(self, name) for name in ("policy", "temperature", "top_p", "seed", "max_tokens")
        }
        return Request.of(messages, stop or self.stop or [], {**defaults, **caller(), **options})

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        request = self._request(messages, stop, kwargs)
        return _whole(list(self._answer(request, whole=True)))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        request = self._request(messages, stop, kwargs)
        for chunk in self._answer(request):
            if run_manager is not None:
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return _whole([chunk async for chunk in self._astream(messages, stop, **kwargs)])

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        request = self._request(messages, stop, kwargs)
        run, worker = asyncio.get_running_loop().run_in_executor, self.runtime.worker
        pieces = self._answer(request)
        try:
            while (chunk := await run(worker, next, pieces, None)) is not None:
                if run_manager is not None:
                    await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk
        finally:
            await run(worker, pieces.close)

    def _answer(self, request: Request, whole: bool = False) -> Generator[ChatGenerationChunk, None, None]:
        with _BUILDING:
            _ = self.prompts, self.threads
        return Answering(self, request, whole).chunks()


def _whole(chunks: Sequence[ChatGenerationChunk]) -> ChatResult:
    merged = merge_chat_generation_chunks(list(chunks))
    assert merged is not None  # the last chunk is always there
    chunk = merged.message
    fields = {k: v for k, v in dict(chunk).items() if k in AIMessage.model_fields and k != "type"}
    # Joining keeps no reason why a call is invalid.
    said = (chunk.message for chunk in chunks if isinstance(chunk.message, AIMessage))
    invalid = [call for message in said for call in message.invalid_tool_calls]
    message = AIMessage(**{**fields, "invalid_tool_calls": invalid})
    return ChatResult(generations=[ChatGeneration(message=message)])


def _choice(choice: str | dict[str, Any] | bool | None, tools: Sequence[dict[str, Any]]) -> str | None:
    """auto, any, none, or the name of one of the tools."""
    if isinstance(choice, dict):
        choice = choice.get("function", choice).get("name", "")
    if choice in (None, False, "auto"):
        return None
    if choice in (True, "any", "required"):
        return "any"
    names = [tool["function"]["name"] for tool in tools]
    if choice == "none" or choice in names:
        return str(choice)
    raise InvalidInput(
        got=f"tool_choice={choice!r}", expected=f"auto, any, none or one of {names}", do="pass one of them"
    )
