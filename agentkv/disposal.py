"""Can a message go? The question is asked with it and without it, and the answers are compared.

Kamera proposes to switch off the patches that a chunk has left in others, decode once, and compare. Here a
fork carries out the eviction itself, under the policy under which it would happen: the message's rows are not
attended, and what was computed behind it is kept, patched or computed as that policy finds.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from agentkv_orchestrator.policy import Policy
from torch import Tensor

from agentkv import rules
from agentkv.audit import divergence
from agentkv.cache import Overlay, Run
from agentkv.errors import InvalidInput
from agentkv.handles import Entry, Handle
from agentkv.inputs import marker_ids
from agentkv.metrics import agreement
from agentkv.queries import asked_of

if TYPE_CHECKING:
    from agentkv.window import Window


@dataclass(frozen=True)
class Disposal:
    """What one message changes of the answer to a question.

    kl: KL(with it ‖ without it) of the next token in nats, mean over the greedy answer that is given with it;
    kl_per_token: the same token by token. kl_question: mean over the tokens of the question. agreement: share
    of the answer that is given without it as well, before the first difference. threshold: the KL up to which
    it can go. ms: what finding out took.
    """

    handle: Handle
    kl: float
    kl_per_token: tuple[float, ...]
    kl_question: float
    agreement: float
    threshold: float
    ms: float

    @property
    def can_go(self) -> bool:
        return self.kl <= self.threshold

    def __str__(self) -> str:
        verdict = "can go" if self.can_go else "matters"
        said = f"KL {self.kl:.3g} over the answer (the limit is {self.threshold:g})"
        return f"{self.handle!r} {verdict}: {said}, {self.agreement:.0%} of it the same"


def disposable(
    window: Window,
    handle: Handle,
    question: Handle | None,
    policy: Policy,
    threshold: float | None,
    new_tokens: int,
) -> Disposal:
    """See `Window.disposable`; everything noted is committed already."""
    since = time.perf_counter()
    entry = rules.live(window.content, handle)
    asked = asked_of(window, question)
    if asked.handle is handle or new_tokens < 1:
        raise InvalidInput(
            got=f"{handle!r} as the question that it is tried on" if new_tokens > 0 else f"{new_tokens=}",
            expected="a question about the rest of the window, and at least one token of an answer",
            do="pass question=, or append one",
        )
    answer, found = answered(window, asked, new_tokens)
    with window.fork() as twin:
        twin.policy = policy.model_copy(update={"stash": False})  # nothing is lost: the window has it
        twin.pin(entry.handle, on=False)
        twin.evict(entry.handle)
        twin.commit()
        left = retold(twin, asked, answer)
    return compared(
        handle, found, left, new_tokens, policy.kl_budget if threshold is None else threshold, since
    )


def compared(
    handle: Handle, found: Tensor, left: Tensor, new_tokens: int, threshold: float, since: float
) -> Disposal:
    """Of logits ``[T, vocab]``: the question, then ``new_tokens`` of the answer, with it and without."""
    kl = divergence(found, left)
    asked, told = kl[: len(kl) - new_tokens + 1], tuple(kl[-new_tokens:].tolist())
    same = agreement(found[-new_tokens:], left[-new_tokens:]) / new_tokens
    ms = (time.perf_counter() - since) * 1e3
    return Disposal(handle, sum(told) / new_tokens, told, float(asked.mean()), same, threshold, ms)


def answered(window: Window, asked: Entry, new_tokens: int) -> tuple[list[int], Tensor]:
    """The greedy answer to a question over what stands in front of it, and logits ``[T, vocab]``: of the
    question's tokens and of the head of an answer, then of the answer but for its last token. The window is
    left alone."""
    runs, cache = _question(window, asked)
    found = [window.engine.runner.run(runs, cache, keep=sum(len(run.ids) for run in runs))]
    said, last = [int(found[0][-1].argmax())], runs[-1]
    row, position = last.stop, last.position_stop
    for at in range(new_tokens - 1):
        found.append(window.engine.runner.run([Run(row + at, said[-1:], position + at)], cache, keep=1))
        said.append(int(found[-1].argmax()))
    return said, torch.cat(found)


def retold(window: Window, asked: Entry, answer: list[int]) -> Tensor:
    """The same logits over another window, which is made to give this answer."""
    runs, cache = _question(window, asked)
    if len(answer) > 1:
        runs.append(Run(runs[-1].stop, answer[:-1], runs[-1].position_stop))
    return window.engine.runner.run(runs, cache, keep=sum(len(run.ids) for run in runs))


def _question(window: Window, asked: Entry) -> tuple[list[Run], Overlay]:
    """What asks, the head of an answer included, and a cache of what stands in front of it."""
    engine = window.engine
    placed = [p for uid, _ in asked.parts if (p := window.graph.get(uid)) is not None]
    tokens = [engine.tokens(p.chunk.id) for p in placed]
    runs = [Run(p.row, t.ids, p.position, t.media) for p, t in zip(placed, tokens, strict=True)]
    head = engine.template.marks("assistant").head if asked.handle.kind != "assistant" else ""
    if len(ids := marker_ids(engine.tokenizer, head)):
        runs.append(Run(runs[-1].stop, ids, runs[-1].position_stop))
    return runs, Overlay(window.kv, placed[0].row)
