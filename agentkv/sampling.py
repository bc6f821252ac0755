"""How the tokens of an answer are chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopPLogitsWarper


class Sampling(BaseModel):
    """How tokens are chosen. Greedy by default; unknown names raise."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_new_tokens: int = Field(default=128, ge=1)
    temperature: float = Field(default=0.0, ge=0)
    """0: greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int | None = None
    stop: bool = True
    """End at the model's end-of-message token."""

    def chooser(self, device: torch.device) -> Callable[[Tensor], int]:
        """A function from logits ``[1, vocab]`` to the next token."""
        if self.temperature == 0:
            return lambda logits: int(logits.argmax())
        generator = torch.Generator(device=device)
        if self.seed is None:
            generator.seed()  # a new generator always starts from the same number
        else:
            generator.manual_seed(self.seed)
        heat, nucleus = TemperatureLogitsWarper(self.temperature), TopPLogitsWarper(self.top_p)

        def choose(logits: Tensor) -> int:
            weights = nucleus(None, heat(None, logits)).softmax(-1)
            return int(torch.multinomial(weights, 1, generator=generator))

        return choose


class Guide(Protocol):
    """Says which tokens an answer may go on with, such as a grammar."""

    def mask(self, logits: Tensor) -> Tensor:
        """``[1, vocab]``, -inf where a token is not allowed."""
        ...

    def push(self, token: int) -> bool:
        """Take note of what was said; whether the answer is complete."""
        ...
