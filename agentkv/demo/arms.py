"""What agentkv is measured against: stock transformers, with its own cache, attention and linears."""

from __future__ import annotations

import time
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from agentkv.inputs import Ids


@dataclass(frozen=True)
class First:
    """A first token: ms from the ids to the token, and the logits ``[vocab]`` it was taken from."""

    ms: float
    logits: Tensor


class Stock:
    """Token ids and the KV that stock transformers computed for them."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.cache = DynamicCache()
        self.ids: Ids = np.empty(0, dtype=np.int64)

    def first_token(self, ids: Ids) -> First:
        """The logits behind ``ids`` ``[T]``, from whatever this arm can reuse."""
        raise NotImplementedError

    def feed(self, ids: Ids, keep: int = 1) -> Tensor:
        """Run ``ids`` behind what is cached; logits of the last ``keep`` tokens ``[keep, vocab]``."""
        at = len(self.ids)
        device = next(self.model.parameters()).device
        tokens = torch.as_tensor(ids, device=device)[None]
        positions = torch.arange(at, at + len(ids), device=device)[None]
        with torch.inference_mode():
            out = self.model(
                input_ids=tokens,
                position_ids=positions,
                cache=self.cache,
                use_cache=True,
                logits_to_keep=keep,
            )
        self.ids = np.concatenate([self.ids, ids])
        return out.logits[0]

    def cut(self, tokens: int) -> None:
        """Forget everything behind the first ``tokens``."""
        self.cache.crop(tokens - len(self.ids))  # transformers counts what to remove, below zero
        self.ids = self.ids[:tokens]

    def greedy(self, logits: Tensor, count: int, stops: frozenset[int]) -> list[int]:
        """Up to ``count`` greedy tokens from ``logits`` ``[vocab]`` on; a stop token is the last."""
        said: list[int] = []
        while True:
            said.append(int(logits.argmax()))
            if len(said) == count or said[-1] in stops:
                return said
            logits = self.feed(np.asarray(said[-1:], dtype=np.int64))[-1]

    def _run(self, ids: Ids, since: float) -> First:
        logits = self.feed(ids)[-1]
        int(logits.argmax())  # choosing the token is part of every arm's time
        return First((time.perf_counter() - since) * 1e3, logits)


class Reprefill(Stock):
    """Everything from nothing, every turn."""

    def first_token(self, ids: Ids) -> First:
        since = time.perf_counter()
        self.cache, self.ids = DynamicCache(), ids[:0]
        return self._run(ids, since)


class LongestPrefix(Stock):
    """What a prefix cache does: keep the longest common prefix of the last turn, compute the rest."""

    def first_token(self, ids: Ids) -> First:
        since = time.perf_counter()
        shared = common_prefix(self.ids, ids[:-1])  # the last token's logits have to come from somewhere
        self.cut(shared)
        return self._run(ids[shared:], since)

    def fork(self) -> LongestPrefix:
        """The same cache for a second window. A copy, which a paged cache would not need: not to be timed."""
        twin = LongestPrefix(self.model)
        twin.cache, twin.ids = deepcopy(self.cache), self.ids
        return twin


def common_prefix(a: Ids, b: Ids) -> int:
    """How many first ids ``a`` and ``b`` share."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n
