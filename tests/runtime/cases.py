"""What the window tests share: engines over tiny models, random texts, and the truth to compare with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from agentkv_orchestrator.cost import CostTable
from agentkv_orchestrator.policy import Policy
from torch import Tensor

from agentkv import Engine, Window
from agentkv.cache import Overlay, Run
from agentkv.inputs import Ids
from agentkv.kv import KVBlock
from agentkv.testing import same_bits
from tests.models import VOCAB, full_precision, tiny_model, tiny_tokenizer
from tests.tolerances import KV, LOGITS, kv_error

FAMILIES = ("llama", "gpt_neox", "qwen3")
"""Grouped heads; partial rotary and as many KV heads as query heads; its own head dim, normed keys."""

_EXACT: list[Any] = []
DTYPES = (torch.float64, torch.float32)
FULL = 999
"""A patch rank that keeps everything."""

STRICT = Policy(name="balanced", kl_budget=0.0)
"""Anything goes that is predicted to cost no KL."""

TEMPLATE = (
    "{% for m in messages %}{{ {'system': 'w10 ', 'user': 'w11 ', 'assistant': 'w12 '}[m['role']] }}"
    "{{ m['content'] }}{{ ' w13 ' }}{% endfor %}"
)
"""A chat template of one marker word in front of a message, by role, and w13 behind it."""


@cache
def model(family: str, dtype: torch.dtype) -> Any:
    """One tiny model for all tests, with rotary angles in fp64: engines use it and never change it."""
    tiny = tiny_model(family, dtype)
    exact = full_precision(tiny)
    exact.__enter__()
    _EXACT.append(exact)  # a generator that is let go runs its finally
    return tiny


def trusting() -> CostTable:
    """Costs that predict no KL from stored patches, so that a strict policy takes them."""
    costs = CostTable.shipped()
    kl = costs.kl.model_copy(update={"patch": 0.0, "orbit": 0.0, "removal": 0.0})
    return costs.model_copy(update={"kl": kl})


@contextmanager
def engine(
    family: str = "llama",
    dtype: torch.dtype = torch.float64,
    *,
    chat: bool = False,
    stop: str | None = None,
    **settings: Any,
) -> Iterator[Engine]:
    """An engine over a shared model. chat: with a chat template. stop: the end-of-message word.

    Patches are stored as the model's own numbers, so that one of full rank loses nothing.
    """
    tokenizer = tiny_tokenizer()
    if chat:
        tokenizer.chat_template = TEMPLATE
    if stop:
        tokenizer.eos_token = stop
    settings = {"patch_dtype": "model", **settings}
    with Engine.from_model(model(family, dtype), tokenizer, **settings) as built:
        yield built


def words(count: int, seed: int = 0) -> str:
    """``count`` random words, one token each."""
    return " ".join(f"w{token}" for token in ids(count, seed))


def ids(count: int, seed: int = 0) -> Ids:
    """The tokens of `words`, int64 ``[count]``; none of them is special."""
    return np.random.default_rng(seed).integers(14, VOCAB, count, dtype=np.int64)


def live(window: Window) -> KVBlock:
    """A copy of the committed rows."""
    return window.kv.view(window.kv.start, window.kv.end).clone()


def reprefilled(window: Window) -> KVBlock:
    """What the rows would hold had they all been computed now, where they stand."""
    backend, first, tokens = window.engine.backend, window.kv.start, window.ids()
    kv = backend.new_kv(first + len(tokens))
    kv.start, kv.end = first, first + len(tokens)
    backend.prefill(kv, [Run(first, tokens)], keep=0)
    return kv.view(kv.start, kv.end)


def assert_kv(found: KVBlock, wanted: KVBlock) -> None:
    """Equal within the table's tolerance of the dtype."""
    assert torch.equal(found.positions, wanted.positions)
    for a, b in zip(found.slots, wanted.slots, strict=True):
        assert kv_error(a, b) <= KV[a.dtype]


def question_logits(window: Window, count: int = 8) -> Tensor:
    """Logits of a question behind the window, ``[count, vocab]``; the window is left alone."""
    asked = torch.tensor(ids(count, seed=77))
    return window.engine.runner.run(
        [Run(window.kv.end, asked)], Overlay(window.kv, window.kv.end), keep=count
    )


def true_logits(window: Window, count: int = 8) -> Tensor:
    """The same question behind a re-prefill by transformers' own forward, from position 0."""
    every = torch.cat([torch.tensor(window.ids()), torch.tensor(ids(count, seed=77))])
    with torch.inference_mode():
        return window.engine.loaded.model(every[None]).logits[0, -count:]


def assert_exact(window: Window) -> None:
    """KV and logits are those of a re-prefill."""
    assert_kv(live(window), reprefilled(window))
    found, wanted = question_logits(window), true_logits(window)
    assert float((found - wanted).abs().max()) <= LOGITS[window.kv.dtype]


def snapshot(window: Window) -> tuple[Any, ...]:
    """Everything that a failed call must leave as it was; compare with `assert_unchanged`."""
    rows = (window.kv.start, window.kv.end)
    return live(window), window.graph.placements, window.committed, rows, window.ids().tolist()


def assert_unchanged(window: Window, before: tuple[Any, ...]) -> None:
    now = snapshot(window)
    assert same_bits(now[0], before[0])
    assert now[1:] == before[1:]
    assert window.content == window.committed
