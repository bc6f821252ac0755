"""Can a message go? The question is asked with it and without it, and the answers are compared.

Kamera proposes to switch off the patches that a chunk has left in others, decode once, and compare. Here a
fork carries out the eviction itself, under the policy under which it would happen: the message's rows are not
attended, and what was computed behind it is kept, patched or computed as that policy finds.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentkv_orchestrator.policy import Policy
from torch import Tensor

from agentkv import rules
from agentkv.audit import divergence
from agentkv.cache import Overlay, Run
from agentkv.errors import InvalidInput
from agentkv.handles import Entry, Handle
from agentkv.inputs import marker_ids
from agentkv.queries import asked_of

if TYPE_CHECKING:
    from agentkv.window import Window


@dataclass(frozen=True)
class Disposal:
    """What one message changes of the answer to a question.

    kl: KL(with it ‖ without it) of the next token in nats, at the end of the question, where its answer
    begins. kl_question: mean over the tokens of the question. same_token: whether the greedy answer begins
    alike. threshold: the KL up to which it can go. ms: what finding out took.
    """

    handle: Handle
    kl: float
    kl_question: float
    same_token: bool
    threshold: float
    ms: float

    @property
    def can_go(self) -> bool:
        return self.kl <= self.threshold

    def __str__(self) -> str:
        verdict = "can go" if self.can_go else "matters"
        token = "the same" if self.same_token else "another"
        return (
            f"{self.handle!r} {verdict}: KL {self.kl:.3g} where the answer begins, {token} first token; "
            f"up to {self.threshold:g} it can go"
        )


def disposable(
    window: Window, handle: Handle, question: Handle | None, policy: Policy, threshold: float | None
) -> Disposal:
    """See `Window.disposable`; everything noted is committed already."""
    since = time.perf_counter()
    entry = rules.live(window.content, handle)
    asked = asked_of(window, question)
    if asked.handle is handle:
        raise InvalidInput(
            got=f"{handle!r} as the question that it is tried on",
            expected="a question about the rest of the window",
            do="pass question=, or append one",
        )
    found = logits(window, asked)
    with window.fork() as twin:
        twin.policy = policy.model_copy(update={"stash": False})  # nothing is lost: the window has it
        twin.pin(entry.handle, on=False)
        twin.evict(entry.handle)
        twin.commit()
        left = logits(twin, asked)
    kl = divergence(found, left)
    same = int(found[-1].argmax()) == int(left[-1].argmax())
    ms = (time.perf_counter() - since) * 1e3
    most = policy.kl_budget if threshold is None else threshold
    return Disposal(handle, float(kl[-1]), float(kl.mean()), same, most, ms)


def logits(window: Window, asked: Entry) -> Tensor:
    """``[T, vocab]``: the tokens of a question, and of the head of an answer to it, run again over what
    stands in front of it; the window is left alone."""
    engine = window.engine
    placed = [p for uid, _ in asked.parts if (p := window.graph.get(uid)) is not None]
    runs = [
        Run(p.row, tokens.ids, p.position, tokens.media)
        for p, tokens in ((p, engine.tokens(p.chunk.id)) for p in placed)
    ]
    head = engine.template.marks("assistant").head if asked.handle.kind != "assistant" else ""
    if len(ids := marker_ids(engine.tokenizer, head)):
        runs.append(Run(placed[-1].stop, ids, placed[-1].position_stop))
    keep = sum(len(run.ids) for run in runs)
    return engine.runner.run(runs, Overlay(window.kv, placed[0].row), keep=keep)
