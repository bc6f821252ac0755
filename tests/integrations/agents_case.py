"""What the tests of agents share: a tiny random model that reads the embedded model's tokens, and scripts."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Send
from PIL import Image
from pydantic import Field
from transformers import AutoTokenizer

from agentkv import Engine
from agentkv.integrations.answering import METADATA, Request
from agentkv.integrations.evictable import RECALL
from agentkv.integrations.prompt import Prompts
from agentkv.integrations.templates import HERMES
from agentkv.models.embedded import ensure
from agentkv.sampling import Guide
from agentkv.showing import Message
from agentkv.testing.chat import Script, ScriptedChatAgentKV, Verbatim
from tests.models import tiny_model

HIDDEN = 32
THREAD: Any = {"configurable": {"thread_id": "t"}}
LOOK: Any = {"messages": [HumanMessage("Look around the house, room by room.")]}

LLAMA = """\
{{- '<|im_start|>system\\nToday is ' + (date or '1 May') + '.\\n' }}
{%- if tools %}{%- for t in tools %}{{- (t | tojson(indent=4)) + '\\n\\n' }}{%- endfor %}{%- endif %}
{%- if messages[0].role == 'system' %}
{{- messages[0].content | trim }}{%- set messages = messages[1:] %}
{%- endif %}
{{- '<|im_end|>' }}
{%- for m in messages %}
{%- if m.tool_calls %}
{{- '<|im_start|>assistant\\n{"name": "' + m.tool_calls[0].function.name + '", "parameters": ' }}
{{- (m.tool_calls[0].function.arguments | tojson) + '}<|im_end|>' }}
{%- elif m.role == 'tool' %}{{- '<|im_start|>ipython\\n' + (m.content | tojson) + '<|im_end|>' }}
{%- else %}{{- '<|im_start|>' + m.role + '\\n' + (m.content | trim) + '<|im_end|>' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
"""As Llama 3 writes: a date and the tools in front, contents trimmed, results of tools quoted, bare calls."""

FREE = "*"
"""A script's word for: let the model itself say something."""


@cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(str(ensure()))


@cache
def tiny(seed: int = 0) -> Any:
    """A llama of two layers in fp64, over all tokens of the tokenizer."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    sizes = {"hidden_size": HIDDEN, "num_hidden_layers": 2, "vocab_size": len(tokenizer()), **heads}
    return tiny_model("llama", seed=seed, max_position_embeddings=8192, **sizes)


class Shades:
    """An adapter: a picture is four embeddings that its pixels decide."""

    def __init__(self) -> None:
        self.placeholder_id: int = tokenizer().convert_tokens_to_ids("<jupyter_output>")
        self.projection = torch.randn(
            3, HIDDEN, generator=torch.Generator().manual_seed(0), dtype=torch.float64
        )

    def encode(self, image: Image.Image) -> torch.Tensor:
        pixels = torch.from_numpy(np.asarray(image, dtype=np.float64).copy())
        return pixels.reshape(4, -1, 3).mean(1) / 255 @ self.projection

    def digest(self) -> bytes:
        return b"shades"


@contextmanager
def engine(seed: int = 0) -> Iterator[Engine]:
    with Engine.from_model(tiny(seed), tokenizer(), vision=Shades()) as built:
        yield built


def picture(shade: int) -> dict[str, Any]:
    """A block of one image."""
    data = io.BytesIO()
    Image.new("RGB", (8, 8), (shade, 255 - shade, 7 * shade % 256)).save(data, format="PNG")
    return {"type": "image", "base64": base64.b64encode(data.getvalue()).decode(), "mime_type": "image/png"}


class Chat(ScriptedChatAgentKV):
    """A scripted model that speaks freely where the script says `FREE`; it remembers what it was asked."""

    max_tokens: int = 40
    policy: Any = "exact"
    chat_template: str | None = HERMES
    asked: list[Request] = Field(default_factory=list, exclude=True)

    def guide(self, request: Request) -> Guide | None:
        self.asked.append(request)
        guide = super().guide(request)
        told = isinstance(guide, Verbatim) and guide.ids != tokenizer()(FREE)["input_ids"]
        return guide if told else None


def saying(*answers: str) -> Script:
    """These answers, one after another, whoever asks."""
    left = iter(answers)
    return lambda messages, tools: next(left)


def replying(messages: Sequence[BaseMessage], tools: Sequence[str]) -> str:
    """Words about the last message."""
    return f"I have read {len(messages)} messages, the last of {len(messages[-1].text)} characters."


def free(messages: Sequence[BaseMessage], tools: Sequence[str]) -> str:
    return FREE


def call(tool: str, **args: Any) -> str:
    """A call as the template writes it."""
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': args})}\n</tool_call>"


def calling(step: Callable[[int], str]) -> Script:
    """An answer by how many of the messages are tools' results."""
    return lambda messages, tools: step(sum(isinstance(m, ToolMessage) for m in messages))


@tool
def look(place: int) -> list[dict[str, Any]]:
    """Look at a place."""
    return [picture(place)]


@tool
def read(page: int) -> str:
    """Read a page."""
    return f"Page {page} tells how the {page}th king counted his sheep. " * 4


def rooms(count: int, then: str = "Seen.") -> Script:
    return calling(lambda done: call("look", place=done) if done < count else then)


def words(message: BaseMessage) -> list[str]:
    """A message's blocks: text, or "image"."""
    content = [message.content] if isinstance(message.content, str) else message.content
    return [b if isinstance(b, str) else str(b.get("text") or b["type"]) for b in content]


def tool_words(messages: Sequence[BaseMessage]) -> list[str]:
    return [" ".join(words(message)) for message in messages if isinstance(message, ToolMessage)]


def card(number: int, noun: str = "image") -> str:
    return f"[{noun} {number}: evicted; {RECALL}('{number}') shows it again]"


def agent(chat: Any, *middleware: Any, tools: Any = (look,), **options: Any) -> Any:
    options = {"checkpointer": InMemorySaver(), **options}
    return create_agent(chat, list(tools), middleware=middleware, **options)


def handle(message: BaseMessage) -> str:
    return str(message.response_metadata[METADATA]["window"])


def cached(message: BaseMessage) -> int:
    """Tokens of the prompt that were in the window."""
    assert isinstance(message, AIMessage)
    assert message.usage_metadata is not None
    return message.usage_metadata["input_token_details"]["cache_read"]


def formed(message: BaseMessage) -> int:
    """Tokens of the prompt that were run through the model."""
    assert isinstance(message, AIMessage)
    assert message.usage_metadata is not None
    return message.usage_metadata["input_token_details"]["cache_creation"]


def held(chat: Chat, thread: str, answer: AIMessage) -> list[int]:
    """Ids of the window of this thread that nothing came into since this answer."""
    window = chat.window_of(answer)
    assert window is not None
    assert handle(answer) in chat.threads.handles(thread)
    return window.ids().tolist()


def rendered(chat: Chat, request: Request, answer: BaseMessage) -> list[int]:
    """Ids of a prompt and its answer, written anew by a template that remembers nothing."""
    fresh = Prompts(chat.runtime, chat.template)
    return joined(fresh.messages([*request.messages, answer], request.tools, answer=False))


def stood_for(chat: Chat, request: Request, answer: BaseMessage) -> list[int]:
    """The same, answers as the tokens that they were said in: free ones are often spelt otherwise."""
    return joined(chat.prompts.messages([*request.messages, answer], request.tools, answer=False))


def joined(messages: Sequence[Message]) -> list[int]:
    return [token for message in messages for ids, _ in message.pieces for token in ids.tolist()]


def spoken(chat: Chat, request: Request, tokens: int, seed: int = 0) -> str:
    """What transformers' own forward says to a prompt of text, greedily and from nothing."""
    head = tokenizer()(chat.template.marks.head, add_special_tokens=False)["input_ids"]
    prompt = [*joined(chat.prompts.messages(request.messages, request.tools)), *head]
    said = list[int]()
    with torch.inference_mode():
        for _ in range(tokens):
            ids = torch.tensor([[*prompt, *said]])
            said.append(int(tiny(seed)(ids, logits_to_keep=1).logits[0, -1].argmax()))
    return str(tokenizer().decode(said))


def leaves(value: Any) -> Iterator[Any]:
    """What a nested value of a checkpoint is made of in the end."""
    if isinstance(value, BaseMessage):
        value = value.model_dump()
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from leaves(inner)
    elif isinstance(value, Send):
        yield value
        yield from leaves(value.arg)
    elif isinstance(value, list | tuple | set):
        for inner in value:
            yield from leaves(inner)
    else:
        yield value
