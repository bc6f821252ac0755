"""The truth about a window: re-prefill it from nothing and compare."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torch import Tensor

from agentkv.cache import Overlay, Run, WindowKV
from agentkv.handles import Handle
from agentkv.inputs import marker_ids
from agentkv.queries import asked_of

if TYPE_CHECKING:
    from agentkv.window import Window


@dataclass(frozen=True)
class Blame:
    """How much of the error is gone when this message's KV alone is made exact (nats; may be negative)."""

    handle: Handle
    tokens: int
    kl_saved: float


@dataclass(frozen=True)
class Audit:
    """KL(re-prefill ‖ window) of the next token, in nats, over the tokens of a question and the head of its
    answer; greedy agreement after that.

    kl: mean over the question's tokens. agreement: share of the re-prefill's greedy tokens that the window
    repeats before the first difference. predicted: the bound that the planner had for kl. blame: messages in
    front of the question, worst first (empty when not asked for).
    """

    kl: float
    kl_per_token: tuple[float, ...]
    agreement: float
    tokens: int
    reprefill_ms: float
    window_ms: float
    predicted: float
    blame: tuple[Blame, ...] = field(default=())

    def __str__(self) -> str:
        lines = [
            f"KL(re-prefill ‖ window) {self.kl:.4g} nats over {len(self.kl_per_token)} tokens, "
            f"predicted to stay below {self.predicted:.4g}, "
            f"greedy agreement {self.agreement:.0%}, window of {self.tokens} tokens",
            f"re-prefill {self.reprefill_ms:.0f} ms, the question over the window {self.window_ms:.0f} ms",
        ]
        lines += [f"  {b.kl_saved:+.4g} nats from {b.handle!r}" for b in self.blame]
        return "\n".join(lines)


def divergence(reference: Tensor, other: Tensor) -> Tensor:
    """KL(reference ‖ other) per row of logits ``[T, vocab]``, in nats, computed in fp64; returns ``[T]``."""
    p, q = reference.double().log_softmax(-1), other.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1).clamp_min(0.0)


def audit(window: Window, question: Handle | None, new_tokens: int, attribute: bool) -> Audit:
    """See `Window.audit`. Raises InvalidInput when nothing stands in front of the question, BadCorrection
    when the result cannot be kept."""
    engine, kv = window.engine, window.kv
    first, last, kind = _span(window, question)
    runs = window.runs(upto=last)
    head = engine.template.marks("assistant").head if kind != "assistant" else ""
    if len(ids := marker_ids(engine.tokenizer, head)):
        runs.append(Run(runs[-1].stop, ids, runs[-1].position_stop))
    asked = [_moved(run, kv) for run in runs if run.row >= first - kv.start]
    end, keep = runs[-1].stop, sum(len(run.ids) for run in asked)
    since = time.perf_counter()
    exact = engine.backend.new_kv(end)
    exact.end = end
    truth = engine.runner.run(runs, exact.live(), keep=keep)
    reprefill_ms = (time.perf_counter() - since) * 1e3
    since = time.perf_counter()
    seen = Overlay(kv, first)
    found = engine.runner.run(asked, seen, keep=keep)
    window_ms = (time.perf_counter() - since) * 1e3
    kl = divergence(truth, found)
    behind = Run(end, [], runs[-1].position_stop)
    new_tokens = min(new_tokens, engine.layout.max_positions - max(end, behind.first))
    agreement = _agreement(window, Overlay(exact, end), behind, truth, seen, found, new_tokens)
    blame = _blame(window, exact, asked, first, truth, float(kl.mean())) if attribute else ()
    mean, predicted = float(kl.mean()), window.error_in_front(first)
    if not any(p.clean for p in window.graph.placements):  # what was asked for is no error of the books
        engine.heard(predicted, mean)
    return Audit(mean, tuple(kl.tolist()), agreement, end, reprefill_ms, window_ms, predicted, blame)


def _moved(run: Run, kv: WindowKV) -> Run:
    """A run of `Window.runs`, which starts at 0, where the window has it."""
    return replace(run, row=run.row + kv.start, position=run.first + int(kv.positions[kv.start]))


def _span(window: Window, question: Handle | None) -> tuple[int, int, str]:
    """Rows of the question (its message, or the last one that is no answer) and its kind."""
    entry = asked_of(window, question)
    rows = {p.uid: p for p in window.graph.placements}
    return rows[entry.parts[0][0]].row, rows[entry.parts[-1][0]].stop, entry.handle.kind


def _agreement(
    window: Window, exact: Overlay, behind: Run, truth: Tensor, seen: Overlay, found: Tensor, count: int
) -> float:
    """Share of ``count`` greedy tokens that both say before they first differ. Both caches end with the
    question; ``behind`` is where the first answer token goes in the re-prefill."""
    run = window.engine.runner.run
    for said in range(count):
        token = int(truth[-1].argmax())
        if token != int(found[-1].argmax()):
            return said / count
        step = Run(behind.row + said, [token], behind.first + said)
        truth = run([step], exact, keep=1)
        found = run([_moved(step, window.kv)], seen, keep=1)
    return 1.0


def _blame(
    window: Window, exact: WindowKV, asked: Sequence[Run], first: int, truth: Tensor, total: float
) -> tuple[Blame, ...]:
    """Put one message's exact KV into a copy of the window at a time, and see how much of the error it
    takes along."""
    backend, run, start = window.engine.backend, window.engine.runner.run, window.kv.start
    rows = {p.uid: p for p in window.graph.placements}
    copy = window.kv.fork()
    copy.own()
    found: list[Blame] = []
    for entry in window.content.live():
        a, b = rows[entry.parts[0][0]].row, rows[entry.parts[-1][0]].stop
        if b > first:
            continue
        kept = backend.read(copy, a, b)
        backend.place(copy, a, exact.view(a - start, b - start), position=int(kept.positions[0]))
        kl = float(divergence(truth, run(asked, Overlay(copy, first), keep=len(truth))).mean())
        backend.place(copy, a, kept, position=int(kept.positions[0]))
        found.append(Blame(entry.handle, b - a, total - kl))
    return tuple(sorted(found, key=lambda blame: -blame.kl_saved))
