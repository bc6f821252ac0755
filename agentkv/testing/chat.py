"""A chat model that says what it is told to: everything is real but the choice of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from langchain_core.messages import BaseMessage
from pydantic import Field
from torch import Tensor

from agentkv.integrations.answering import Request
from agentkv.integrations.chat import ChatAgentKV
from agentkv.sampling import Guide

Script = Callable[[Sequence[BaseMessage], Sequence[str]], str | None]
"""From the messages and the names of the tools that may be called to the next answer, with its calls as the
model's template writes them; None for what the model itself says."""


class Verbatim:
    """One text, token by token; `agentkv.sampling.Guide`."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids, self.said = list(ids), 0

    def mask(self, logits: Tensor) -> Tensor:
        found = torch.full_like(logits, -torch.inf)
        found[..., self.ids[self.said]] = 0.0
        return found

    def push(self, token: int) -> bool:
        self.said += 1
        return self.said == len(self.ids)


class ScriptedChatAgentKV(ChatAgentKV):
    """For tests of agents whose model is too weak to decide. Windows, templates and usage are real."""

    script: Script = Field(exclude=True)

    def guide(self, request: Request) -> Guide | None:
        """What the script says, unless JSON was asked for."""
        if request.response_format is not None:
            return super().guide(request)
        text = self.script(request.messages, request.callable)
        if text is None:
            return super().guide(request)
        return Verbatim(self.runtime.tokenizer(text, add_special_tokens=False)["input_ids"])
