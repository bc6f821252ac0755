"""What the window tests share: engines that see, and the truth to compare with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from agentkv_orchestrator.plan import Plan

from agentkv import Engine, Window
from agentkv.handles import Handle
from tests.models import full_precision
from tests.runtime.cases import FULL, trusting
from tests.runtime.media.cases import (
    Rig,
    block_ids,
    laid_out,
    our_logits,
    rig,
)
from tests.tolerances import LOGITS

QUESTION = "what?"


@contextmanager
def engine(family: str, dtype: torch.dtype = torch.float64, **settings: Any) -> Iterator[Engine]:
    """An engine over the shared model, whose patches are of full rank and trusted."""
    found = rig(family, dtype)
    given = {"patch_rank": FULL, "patch_dtype": "model", **settings}
    with (
        full_precision(found.model),
        Engine.from_model(
            found.model, found.processor.tokenizer, processor=found.processor, costs=trusting(), **given
        ) as built,
    ):
        yield built


def asked(window: Window) -> torch.Tensor:
    """Logits [5, vocab] of a question behind the window; the window is left alone."""
    fork = window.fork()
    fork.append(QUESTION)
    fork.commit(keep=len(QUESTION))
    logits = fork.last_outcome.logits
    fork.close()
    assert logits is not None
    return logits


def true_logits(family: str, window: Window, parts: list[Any], **settings: Any) -> torch.Tensor:
    """The same question behind ``parts``, by transformers from position 0."""
    base = rig(family, window.kv.dtype)
    found = Rig(base.model, base.processor, window.engine.tower)
    pieces = laid_out(found, [*parts, QUESTION], **settings)
    return our_logits(found, family, pieces, **block_ids(pieces))[-len(QUESTION) :]


def assert_shows(family: str, window: Window, *parts: Any) -> None:
    """The window answers as transformers does behind this content."""
    error = (asked(window) - true_logits(family, window, list(parts))).abs().max()
    assert float(error) <= LOGITS[window.kv.dtype]


def show(window: Window, source: Any, **settings: Any) -> list[Handle]:
    """Append an image, or a video: a handle for each message it became."""
    found = window.append(source, **settings)
    return list(found) if isinstance(found, tuple) else [found]


def forget_rows(engine: Engine) -> None:
    """Drop all stored KV but canonicals and patches, so that the plan has to take these."""
    for key in engine.store.keys():  # noqa: SIM118
        if key.kind == "conditioned":
            engine.store.drop(key)


def ops(plan: Plan) -> set[str]:
    return {op.op for op in plan.ops}
