"""Windows of real documents at a given length, and the stock arm to compare with."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import distributions
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from agentkv import Engine, Handle, Window
from agentkv.demo.documents import readable

QUESTION = (
    "Which of these packages would you use to check types, and what does its documentation say about it?"
)
QUESTION_TOKENS = 24
SYSTEM = "You answer questions about the documentation of Python packages. Be brief, and name the package."


@dataclass
class Case:
    """A committed window of ``size`` tokens: a pinned system message and equal documents; the question is
    separate."""

    window: Window
    system: Handle
    documents: list[Handle]
    spare: Handle
    question: np.ndarray


def question_ids(engine: Engine) -> np.ndarray:
    """int64 [24]: a question with its chat markers, cut or padded to the length that all figures use."""
    text = engine.template.render(QUESTION, "user") + engine.template.marks("assistant").head
    ids = engine.tokenizer(text, add_special_tokens=False)["input_ids"]
    return np.asarray((ids[: QUESTION_TOKENS - 3] + ids[-3:])[:QUESTION_TOKENS], dtype=np.int64)


def build(engine: Engine, size: int, pieces: int = 5) -> Case:
    """A window of exactly ``size`` tokens: system, then ``pieces`` documents of equal length, all of them
    real text.

    ``spare`` is one more document of that length, appended and evicted again, so that the store knows it.
    """
    window = engine.window(policy="exact", max_tokens=engine.layout.max_positions)
    system = window.append(SYSTEM, kind="system", pin=True)
    each = (size - system.tokens) // pieces
    stream = readable(distributions())
    handles = []
    for i in range(pieces + 1):
        length = each if i else size - system.tokens - each * (pieces - 1)
        ids: list[int] = []
        while len(ids) < length:
            ids += engine.tokenizer(next(stream)[1], add_special_tokens=False)["input_ids"]
        handles.append(window.append_ids(np.asarray(ids[:length], dtype=np.int64), kind="document"))
    spare = handles.pop()
    window.commit()
    window.evict(spare)
    window.commit()
    return Case(window, system, handles, spare, question_ids(engine))


def stock_logits(model: Any, ids: np.ndarray) -> torch.Tensor:
    """transformers' own prefill of ``ids``, as it comes: the last token's logits [vocab]."""
    with torch.inference_mode():
        return model(torch.as_tensor(ids)[None], use_cache=True, logits_to_keep=1).logits[0, -1]


def stock_cache(model: Any, ids: np.ndarray) -> DynamicCache:
    """A DynamicCache of ``ids``."""
    with torch.inference_mode():
        return model(torch.as_tensor(ids)[None], use_cache=True, logits_to_keep=1).cache
