"""Plays the day and measures every turn three ways over the same token ids; checks before numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from agentkv_orchestrator.plan import Keep, Load, PlaceCanonical, Placing, Plan, Prefill, Rotate
from agentkv_orchestrator.policy import Policy

from agentkv.audit import divergence
from agentkv.cache import Overlay
from agentkv.cache import Run as Rows
from agentkv.demo.arms import First, LongestPrefix, Reprefill, common_prefix
from agentkv.demo.documents import Document
from agentkv.demo.errors import CheckFailed
from agentkv.demo.report import Run, Scene, Segment, Status, Turn, hardware
from agentkv.demo.story import STEPS, Day, Step, finish, play
from agentkv.engine import Engine
from agentkv.handles import Handle
from agentkv.inputs import Ids, marker_ids
from agentkv.patches import Patch
from agentkv.window import Window

LOGITS = {torch.float64: 1e-9, torch.float32: 1e-3}
"""Largest difference of logits between two ways to compute the same thing exactly, by dtype."""
OURS, PREFIX, REPREFILL = "agentkv", "longest-prefix reuse", "re-prefill"
_STATUS: dict[type, Status] = {
    Keep: "reused",
    Rotate: "rotated",
    Load: "patched",
    PlaceCanonical: "patched",
    Prefill: "recomputed",
}
Progress = Callable[[Turn, Scene], object]


@dataclass(frozen=True)
class Prompt:
    """What every arm answers in a turn: ids ``[T]``, the last ``asked`` of them the question and the head.

    head, tail: tokens in front of an answer and behind it.
    """

    ids: Ids
    asked: int
    head: int
    tail: int


@dataclass(frozen=True)
class Ours:
    """agentkv's turn. forward_ms: the model's share of the first token. said: the answer, no stop token."""

    first: First
    forward_ms: float
    plan: Plan
    said: list[int]
    answer: Handle | None


@dataclass(frozen=True)
class Stocks:
    """The other two arms of one window."""

    prefix: LongestPrefix
    reprefill: Reprefill


def run_day(
    engine: Engine,
    policy: str | Policy,
    library: Sequence[Document],
    answer_tokens: int = 16,
    steps: Sequence[Step] = STEPS,
    progress: Progress = lambda turn, scene: None,
) -> Run:
    """Play ``steps`` and measure each. progress: called behind every turn.

    Raises CheckFailed as soon as two arms differ that must not, and whatever the engine raises.
    """
    warm_up(engine)
    model, found = engine.loaded.model, []
    with engine.window(policy) as window:
        day, stocks = Day(window, library), Stocks(LongestPrefix(model), Reprefill(model))
        for step in steps:
            found.append(measure(day, step, stocks, answer_tokens))
            progress(*found[-1])
        name, budget = window.policy.name, window.policy.allowance
    turns, scenes = (tuple(part) for part in zip(*found, strict=True))
    return Run(engine.loaded.name, name, hardware(), torch.get_num_threads(), budget, turns, scenes)


def measure(day: Day, step: Step, stocks: Stocks, answer_tokens: int) -> tuple[Turn, Scene]:
    """One turn: edits, then the arms in an order that moves on every turn, then checks, then idle work."""
    since = time.perf_counter()
    play(day, step)
    edits_ms = (time.perf_counter() - since) * 1e3
    window, prompt = day.here, _prompt(day)
    if day.aside:
        stocks = Stocks(stocks.prefix.fork(), stocks.reprefill)
    firsts, ours = race(window, prompt, stocks, day.turn, answer_tokens)
    compare(window, firsts, ours.plan)
    agreement = _agreement(
        ours.said, _reference(window, stocks.reprefill, firsts[REPREFILL], answer_tokens), answer_tokens
    )
    kl = _kl(window, stocks.reprefill, prompt)
    if len(answered := window.ids()[len(prompt.ids) :]):
        stocks.prefix.feed(answered)  # a prefix cache holds the answer from its own decode
    kv_bytes, scene = window.kv.nbytes, _scene(day, step, ours)
    finish(day, step, ours.answer)
    since = time.perf_counter()
    day.window.settle()
    idle_ms = (time.perf_counter() - since) * 1e3
    turn = Turn(
        turn=day.turn,
        op=step.op,
        prompt_tokens=len(prompt.ids),
        **{f"{name}_tokens": count for name, count in ours.plan.tokens().items()},
        ttft_ms=edits_ms + ours.first.ms,
        prefix_ttft_ms=firsts[PREFIX].ms,
        reprefill_ttft_ms=firsts[REPREFILL].ms,
        kl=kl,
        agreement=agreement,
        kv_bytes=kv_bytes,
        patch_bytes=patch_bytes(day.window.engine),
        idle_ms=idle_ms,
        edit_ms=edits_ms + ours.first.ms - ours.forward_ms,
    )
    return turn, scene


def race(
    window: Window, prompt: Prompt, stocks: Stocks, turn: int, answer_tokens: int
) -> tuple[dict[str, First], Ours]:
    """First tokens of the three arms, one after the other; who begins depends on ``turn``."""
    firsts: dict[str, First] = {}
    names = (OURS, PREFIX, REPREFILL)
    for name in (names[(turn + i) % 3] for i in range(3)):
        if name == OURS:
            ours = _answer(window, prompt, answer_tokens)
            firsts[name] = ours.first
        else:
            arm = stocks.prefix if name == PREFIX else stocks.reprefill
            firsts[name] = arm.first_token(prompt.ids)
    return firsts, ours


def warm_up(engine: Engine) -> None:
    """First forwards allocate and repack: all arms run over something short before anything is timed."""
    with engine.window("exact") as window:
        window.append("Warm up.", kind="user")
        window.generate(max_new_tokens=2)
        stock = Reprefill(engine.loaded.model)
        stock.greedy(stock.first_token(window.ids()).logits, 2, frozenset())


def compare(window: Window, firsts: dict[str, First], plan: Plan) -> None:
    """The two stock arms agree; so does agentkv where its window holds what a prefix cache would.

    Raises CheckFailed with the largest difference of logits.
    """
    placed = {op.uid for op in plan.ops if isinstance(op, Placing)}
    verbatim = all(p.verbatim for p in window.graph.placements if p.uid in placed)
    truth = firsts[REPREFILL].logits
    limit = LOGITS[truth.dtype]
    for name in (PREFIX, OURS) if verbatim else (PREFIX,):
        worst = float((firsts[name].logits - truth).abs().max())
        if not worst <= limit:  # NaN fails as well
            raise CheckFailed(
                got=f"logits of {name} that are {worst:.3g} away from those of re-prefill",
                expected=f"at most {limit:g} in {truth.dtype}",
                do="report this with the model's name; no number of this run can be trusted",
            )


def patch_bytes(engine: Engine) -> int:
    """Bytes of all patches in the engine's store."""
    found = map(engine.store.get, tuple(engine.store.keys()))
    return sum(f.entry.nbytes for f in found if f and isinstance(f.entry, Patch))


def _prompt(day: Day) -> Prompt:
    """The ids of the window as its edits want it, and the head of the answer."""
    window, engine = day.here, day.here.engine
    marks = engine.template.marks("assistant")
    head, tail = (marker_ids(engine.tokenizer, text) for text in (marks.head, marks.tail))
    parts = [engine.chunks.ids(wanted.chunk.id) for wanted in window.content.wanted()]
    return Prompt(np.concatenate([*parts, head]), day.asked.tokens + len(head), len(head), len(tail))


def _answer(window: Window, prompt: Prompt, tokens: int) -> Ours:
    """Let the window answer. Its time ends with the first token; the rest is said all the same."""
    before = window.last_answer
    for _ in window.stream(max_new_tokens=tokens):
        pass
    ids = window.ids()
    if not np.array_equal(ids[: len(prompt.ids)], prompt.ids):
        raise CheckFailed(
            got=f"a window that leaves the prompt at token {common_prefix(ids, prompt.ids)}",
            expected="the ids that the other arms run over",
            do="report this with the model's name",
        )
    plan, outcome = window.last_plan, window.last_outcome
    assert plan is not None  # an answer commits
    last = max((op for op in plan.ops if isinstance(op, Placing)), key=lambda op: op.row)
    if outcome.logits is not None and isinstance(last, Prefill):
        logits = outcome.logits[-1]
    else:  # all of the prompt stood there already
        logits = _over_window(window, prompt)[-1]
    said = ids[len(prompt.ids) : len(ids) - prompt.tail].tolist()
    answer = window.last_answer if window.last_answer is not before else None
    return Ours(First(window.timing.ttft_ms, logits), outcome.ms.get("prefill", 0.0), plan, said, answer)


def _over_window(window: Window, prompt: Prompt) -> torch.Tensor:
    """Logits ``[asked, vocab]`` of the question and the head over what the window holds in front of them."""
    row = window.kv.start + len(prompt.ids) - prompt.asked
    asked = torch.as_tensor(prompt.ids[-prompt.asked :], device=window.kv.device)
    return window.engine.runner.run([Rows(row, asked)], Overlay(window.kv, row), keep=prompt.asked)


def _reference(window: Window, stock: Reprefill, first: First, tokens: int) -> list[int]:
    """The re-prefill's greedy answer, no stop token."""
    stops = window.engine.template.stop_ids
    said = stock.greedy(first.logits, tokens, stops)
    return said[:-1] if said[-1] in stops else said


def _agreement(said: list[int], reference: list[int], tokens: int) -> float:
    """Share of the longer answer that both give before they differ; ending early counts as a token."""
    both = [[*answer, *[-1] * (len(answer) < tokens)] for answer in (said, reference)]
    a, b = (np.asarray(answer, dtype=np.int64) for answer in both)
    return common_prefix(a, b) / max(len(a), len(b))


def _kl(window: Window, stock: Reprefill, prompt: Prompt) -> float:
    """Mean KL(re-prefill ‖ window) over the question and the head, which both run behind what they hold."""
    stock.cut(len(prompt.ids) - prompt.asked)
    truth = stock.feed(prompt.ids[-prompt.asked :], keep=prompt.asked)
    return float(divergence(truth, _over_window(window, prompt)).mean())


def _scene(day: Day, step: Step, ours: Ours) -> Scene:
    """The window behind the answer, message by message, with what became of each part."""
    text = day.here.engine.tokenizer.decode(ours.said, skip_special_tokens=True)
    return Scene(step.event, " ".join(text.split()), tuple(_segments(day, ours.plan)))


def _segments(day: Day, plan: Plan) -> Iterator[Segment]:
    fate = {op.uid: _STATUS[type(op)] for op in plan.ops if isinstance(op, Placing)}
    for entry in day.here.content.live():
        handle = entry.handle
        name = day.names.get(handle.id, "answer" if handle.kind == "assistant" else handle.kind)
        # A clock makes a new message of the same name; questions and answers share a name and nothing else.
        key = f"{name} {handle.id}" if handle.kind in ("user", "assistant") else name
        parts = [(fate.get(uid, "decoded"), chunk.length) for uid, chunk in entry.parts]
        for status, run in groupby(parts, key=lambda part: part[0]):
            yield Segment(key, name, status, sum(length for _, length in run))
