"""One call of the chat model: from a message list to the chunks of an answer, and what it cost."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentkv_orchestrator.plan import Plan, Prefill
from agentkv_orchestrator.policy import Policy
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from langchain_core.messages.tool import InvalidToolCall, ToolCallChunk, tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from torch import Tensor

from agentkv.errors import InvalidInput
from agentkv.integrations.calls import Said, read, shown
from agentkv.integrations.threads import Lease
from agentkv.integrations.until import Until
from agentkv.sampling import Guide

if TYPE_CHECKING:
    from agentkv.integrations.chat import ChatAgentKV
    from agentkv.window import Window

METADATA = "agentkv"
"""Key of an answer's ``response_metadata`` under which it says what its window did."""


class Request(BaseModel):
    """What a call asks for.

    tools: OpenAI function schemas. response_format: a JSON schema, or OpenAI's envelope of one, or
    ``{"type": "json_object"}``; with tools an answer may be a call as well. thread_id: whose window it is;
    "" for calls outside of a thread. owner: the node of a graph that calls.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    messages: list[BaseMessage] = Field(min_length=1)
    stop: list[str]
    policy: str | Policy
    temperature: float = Field(ge=0)
    top_p: float = Field(gt=0, le=1)
    seed: int | None = Field(ge=-(2**63), lt=2**64)
    max_tokens: int = Field(ge=1)
    tools: list[dict[str, Any]] = []
    tool_choice: str | None = None
    response_format: dict[str, Any] | None = None
    thread_id: str = ""
    owner: str = ""

    @field_validator("response_format", mode="before")
    @classmethod
    def _schema(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or given.get("type") not in ("json_schema", "json_object"):
            return given
        if given["type"] == "json_object":
            return {"type": "object"}
        inner = given.get("json_schema")
        if not isinstance(inner, Mapping) or not isinstance(inner.get("schema"), Mapping):
            raise ValueError("a json_schema without a schema")
        return inner["schema"]

    @classmethod
    def of(
        cls, messages: Sequence[BaseMessage], stop: str | Sequence[str], options: Mapping[str, Any]
    ) -> Request:
        """Raises InvalidInput for an option that there is not, and for a list without a message."""
        known = {k: v for k, v in options.items() if not k.startswith("ls_")}  # for traces only
        stops = [stop] if isinstance(stop, str) else stop
        if "tools" in known:
            known["tools"] = shown(known["tools"])
        try:
            return cls(messages=list(messages), stop=[s for s in stops if s], **known)
        except ValidationError as error:
            first = error.errors()[0]
            raise InvalidInput(
                got=f"{'.'.join(map(str, first['loc']))}: {first['msg']} ({str(first['input'])[:80]})",
                expected=f"messages, and of the options {sorted(cls.model_fields)}",
                do="leave it out, or see agentkv.integrations.ChatAgentKV",
            ) from error

    @property
    def callable(self) -> list[str]:
        """Names of the tools that may be called."""
        names = [tool["function"]["name"] for tool in self.tools]
        return [name for name in names if self.tool_choice in (None, "any", name)]

    @property
    def handles(self) -> list[str]:
        """Windows that earlier answers of this list were made in, oldest first."""
        said = (m.response_metadata.get(METADATA) for m in self.messages if isinstance(m, AIMessage))
        return [found["window"] for found in said if isinstance(found, dict) and "window" in found]


class Answering:
    """One answer under way. whole: its text in one chunk, as LangChain's chunks take their time."""

    def __init__(self, model: ChatAgentKV, request: Request, whole: bool = False) -> None:
        self.model, self.request, self.start = model, request, time.perf_counter()
        self.whole = whole
        self.prompt_ms = self.ttft_ms = 0.0
        self.guide: _Followed | None = None

    def chunks(self) -> Generator[ChatGenerationChunk, None, None]:
        """Text as it comes, then calls, then usage. Closing it early gives the window back as it is."""
        model, request = self.model, self.request
        guide, triggers = self.model.guide(request), self._triggers()
        self.guide = _Followed(guide) if guide is not None else None
        messages = model.prompts.messages(request.messages, request.tools)
        self.prompt_ms = self._since_start()
        policy = Policy.parse(request.policy)
        place = (request.thread_id, request.owner, request.handles)
        with model.threads.lease(*place, messages, policy) as lease:
            window = lease.window
            known = {uid for entry in window.content.known() for uid, _ in entry.parts}
            until, text = Until(request.stop, triggers, first=self._first(triggers)), ""
            pieces = window.stream(messages, marks=model.template.marks, guide=self.guide, **self._sampling())
            try:
                for piece in pieces:
                    self.ttft_ms = self.ttft_ms or self._since_start()
                    text += until.push(piece)
                    if text and not self.whole:
                        yield _chunk(text)
                        text = ""
                    if until.stopped:
                        break
            finally:
                pieces.close()
            if text:
                yield _chunk(text)
            yield from self._rest(lease, until, known)

    def _triggers(self) -> list[str]:
        """Texts that a call begins with."""
        if not self.request.callable:
            return []
        form = self.model.call_format
        return [form.trigger or form.opening.strip()[:1]]

    def _first(self, triggers: Sequence[str]) -> bool:
        """Whether a call can only be what an answer begins with: no mark tells it from other JSON, or the
        answer is JSON where it is no call."""
        marked = bool(triggers) and bool(self.model.call_format.trigger)
        return not marked or self.request.response_format is not None

    def _sampling(self) -> dict[str, Any]:
        r = self.request
        return {
            "temperature": r.temperature,
            "top_p": r.top_p,
            "seed": r.seed,
            "max_new_tokens": r.max_tokens,
        }

    def _rest(
        self, lease: Lease, until: Until, known: set[int]
    ) -> Generator[ChatGenerationChunk, None, None]:
        """What was held back, read; and what the answer cost."""
        model, window = self.model, lease.window
        said = self._read(until)
        if said.text:
            yield _chunk(said.text)
        for index, call in enumerate(said.calls):
            args = json.dumps(call["args"], ensure_ascii=False)
            yield _called(tool_call_chunk(name=call["name"], args=args, id=call["id"], index=index))
        for index, bad in enumerate(said.invalid, len(said.calls)):
            yield _uncalled(bad, index)
        handle = self._remember(lease, until)
        ended = until.stopped or (self.guide is not None and self.guide.ended)
        cut = window.timing.tokens >= self.request.max_tokens and not ended
        reason = "length" if cut else "tool_calls" if said.calls else "stop"
        message = AIMessageChunk(
            content="",
            chunk_position="last",
            usage_metadata=usage(window, known),
            response_metadata={
                "model_name": model._name,
                "model_provider": "agentkv",
                "finish_reason": reason,
                METADATA: {
                    "window": handle,
                    "went": lease.how,
                    "prompt_ms": round(self.prompt_ms, 3),
                    "ttft_ms": round(self.ttft_ms, 3),
                    "plan": summary(window),
                },
            },
        )
        yield ChatGenerationChunk(message=message, generation_info={"finish_reason": reason})

    def _read(self, until: Until) -> Said:
        rest = until.rest()
        return read(rest, self.model.call_format, self.request.callable) if until.held else Said(rest)

    def _remember(self, lease: Lease, until: Until) -> str:
        """The answer's own tokens stand for its text from now on; the window's new handle."""
        window, template = lease.window, self.model.template
        answer = window.last_answer
        entry = window.content.get(answer.id) if answer is not None else None
        if entry is not None and not until.stopped:
            parts = [window.engine.chunks.ids(chunk.id) for _, chunk in entry.parts]
            text = f"{template.marks.head}{until.raw}{template.marks.tail}"
            self.model.prompts.remember(text, parts, "assistant")
        handle = self.model.threads.name(lease.seat.thread)
        lease.seat.moved(handle)
        return handle

    def _since_start(self) -> float:
        return (time.perf_counter() - self.start) * 1e3


def usage(window: Window, known: set[int]) -> UsageMetadata:
    """What the last answer took. known: uids of what the window had held before.

    cache_read: tokens that stayed or were rotated. agentkv_patched: brought from the store. cache_creation:
    run through the model as they stand; these three are the input. agentkv_recomputed: of what was known,
    tokens that were run again, rows of a repair included.
    """
    plan = window.last_plan
    assert plan is not None  # an answer was committed
    counts = plan.tokens()
    formed = sum(op.tokens for op in plan.ops if isinstance(op, Prefill))
    again = sum(op.tokens for op in plan.ops if isinstance(op, Prefill) and op.uid in known)
    again += counts["recomputed"] - formed  # rows of repairs
    details: dict[str, int] = {
        "cache_read": counts["reused"] + counts["rotated"],
        "cache_creation": formed,
        "agentkv_rotated": counts["rotated"],
        "agentkv_patched": counts["patched"],
        "agentkv_recomputed": again,
    }
    read_in = counts["reused"] + counts["rotated"] + counts["patched"] + formed
    said = window.timing.tokens
    return UsageMetadata(
        input_tokens=read_in,
        output_tokens=said,
        total_tokens=read_in + said,
        input_token_details=InputTokenDetails(**details),  # type: ignore[typeddict-item]
    )


def summary(window: Window) -> dict[str, Any]:
    """Numbers and words of the last plan that fit into a checkpoint."""
    plan: Plan | None = window.last_plan
    assert plan is not None
    return {
        "ops": dict(Counter(op.op for op in plan.ops)),
        "policy": plan.policy,
        "predicted_ms": round(plan.predicted_ms, 3),
        "predicted_kl": round(plan.predicted_kl, 6),
        "kl_budget": plan.kl_budget,
    }


def _chunk(text: str) -> ChatGenerationChunk:
    return ChatGenerationChunk(message=AIMessageChunk(content=text))


def _called(call: ToolCallChunk) -> ChatGenerationChunk:
    return ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[call]))


def _uncalled(bad: InvalidToolCall, index: int) -> ChatGenerationChunk:
    """Who joins chunks reads calls out of their arguments anew, leniently, and drops the reason: it stands in
    front of them there, so that they stay invalid. This chunk itself has both apart."""
    args = f"{bad['error']}: {bad['args']}"
    chunk = _called(tool_call_chunk(name=bad["name"], args=args, id=bad["id"], index=index))
    assert isinstance(chunk.message, AIMessageChunk)
    chunk.message.tool_calls, chunk.message.invalid_tool_calls = [], [bad]
    return chunk


class _Followed:
    """A guide, and whether it came to its end."""

    def __init__(self, guide: Guide) -> None:
        self.guide, self.ended = guide, False

    def mask(self, logits: Tensor) -> Tensor:
        return self.guide.mask(logits)

    def push(self, token: int) -> bool:
        self.ended = self.guide.push(token)
        return self.ended
