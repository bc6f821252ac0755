"""What stands beside each other in `bench.eval.policies`: windows of ours, and what others do with the same
tokens."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from agentkv_orchestrator.policy import Policy
from torch import Tensor

from agentkv import Engine
from agentkv.cache import Run
from agentkv.config import EngineConfig
from agentkv.handles import Handle
from agentkv.kv import KVBlock
from agentkv.models import hf

if TYPE_CHECKING:
    from bench.eval.policies import Step

TRUTH = "reprefill"
BUDGET = Policy().kl_budget
SHARE = 0.25
"""Of the rows that the control computes again."""
TITLES = {
    "balanced": "`balanced`",
    "fast": "`fast`",
    "exact": "`exact`",
    "prefix": "longest prefix",
    "blind": "blind reuse",
    "random": "blind, a quarter of the rows, drawn at random, computed again",
    TRUTH: "*re-prefill*",
}
SYSTEM = "You are a careful assistant. It is {:02}:{:02}. Answer in one short sentence."


class Arm(Protocol):
    """One way to live through a script."""

    name: str

    def turn(self, step: Step, question: str) -> Tensor:
        """Edit, ask; logits of the question's tokens ``[n, vocab]``."""
        ...

    def ids(self) -> Iterable[int]:
        """The tokens that were asked about, the question among them."""
        ...


def build(loaded: hf.LoadedModel, shown: Sequence[str], first: Sequence[int]) -> list[Arm]:
    """All arms, filled; each window of ours on an engine and a store of its own."""
    ours = [Ours(loaded, name, shown, first) for name in ("balanced", "fast", "exact")]
    others: list[Arm] = [kind(loaded, ours[-1]) for kind in (Prefix, Blind, Random, Reprefill)]
    return [*ours, *others]


class Ours:
    """A window under one policy. The question of a turn leaves with the next one's edit."""

    def __init__(
        self, loaded: hf.LoadedModel, policy: str, shown: Sequence[str], first: Sequence[int]
    ) -> None:
        self.name, self.shown = policy, shown
        self.window = Engine(loaded, EngineConfig()).window(policy)
        self.system = self.window.append(SYSTEM.format(9, 0), kind="system", pin=True)
        self.documents: dict[int, Handle] = {}
        for number in first:
            self._append(number, None)
        self.question: Handle | None = None
        self.predicted = 0.0
        self.window.commit()

    def turn(self, step: Step, question: str) -> Tensor:
        if self.question is not None:
            self.window.evict(self.question)
        self._edit(step)
        self.question = self.window.append(question, kind="user")
        plan = self.window.commit(headroom=1, keep=self.question.tokens)
        self.predicted = plan.predicted_kl
        logits = self.window.last_outcome.logits
        if logits is None or len(logits) != self.question.tokens:
            raise AssertionError("a question that was not computed")
        return logits

    def _edit(self, step: Step) -> None:
        before = None if step.before is None else self.documents[step.before]
        handle = self.documents.get(step.which)
        if step.what == "clock":
            self.system = self.window.replace(self.system, SYSTEM.format(9, 7 * step.which + 3))
        elif step.what == "append":
            self._append(step.which, before)
        elif handle is not None and step.what == "evict":
            self.window.evict(handle)
        elif handle is not None and step.what == "recall":
            self.window.recall(handle, before)
        elif handle is not None and step.what == "move":
            self.window.move(handle, before)
        else:
            raise AssertionError(f"{step} on a window without that document")

    def _append(self, number: int, before: Handle | None) -> None:
        self.documents[number] = self.window.append(self.shown[number], kind="document", before=before)

    def ids(self) -> Iterable[int]:
        return self.window.ids().tolist()

    def chunks(self) -> list[str]:
        """Ids of the chunks that are asked about, in order; the question's last."""
        return [p.chunk.id for p in self.window.graph.placements]


class Follower:
    """Shows the tokens of another arm's window, after that arm's turn."""

    name: str

    def __init__(self, loaded: hf.LoadedModel, shown: Ours) -> None:
        self.engine, self.shown = Engine(loaded, EngineConfig()), shown
        self.kv = self.engine.backend.new_kv(4096)
        self.asked: list[int] = list(shown.ids())
        self.fill()

    def fill(self) -> None:
        """What this arm holds before the first turn."""

    def ids(self) -> Iterable[int]:
        return self.asked

    def _next(self) -> int:
        """Take the new tokens over; how many the question has."""
        self.asked = list(self.shown.ids())
        assert self.shown.question is not None
        return self.shown.question.tokens

    def _compute(self, first: int, keep: int) -> Tensor:
        """Prefill from row ``first`` to the end."""
        self.kv.start, self.kv.end = 0, len(self.asked)
        return self.engine.backend.prefill(self.kv, [Run(first, np.asarray(self.asked[first:]))], keep)


class Prefix(Follower):
    """Keeps the rows in front of the first token that differs."""

    name = "prefix"

    def fill(self) -> None:
        self._compute(0, keep=0)

    def turn(self, step: Step, question: str) -> Tensor:
        before = self.asked
        count = self._next()
        common = next(
            (i for i, (a, b) in enumerate(zip(before, self.asked, strict=False)) if a != b),
            min(len(before), len(self.asked)),
        )
        return self._compute(min(common, len(self.asked) - count), count)


class Reprefill(Follower):
    """Computes everything, every time."""

    name = TRUTH

    def turn(self, step: Step, question: str) -> Tensor:
        return self._compute(0, self._next())


class Blind(Follower):
    """Canonicals turned to where they stand; what was never seen is computed for its canonical."""

    name = "blind"

    def fill(self) -> None:
        self.canonicals: dict[str, KVBlock] = {}
        self._place(self.shown.chunks())

    def turn(self, step: Step, question: str) -> Tensor:
        count = self._next()
        self._place(self._context(count))
        return self._compute(len(self.asked) - count, count)

    def _context(self, question: int) -> list[str]:
        """Chunks in front of the question."""
        chunks, tokens = self.shown.chunks(), question
        while tokens > 0:
            tokens -= len(self.shown.window.engine.tokens(chunks.pop()).ids)
        return chunks

    def _place(self, chunks: Sequence[str]) -> None:
        """The system message in front is computed: its canonical would stand on another one."""
        row, backend = 0, self.engine.backend
        self.kv.start, self.kv.end = 0, len(self.asked)
        for number, chunk in enumerate(chunks):
            ids = self.shown.window.engine.tokens(chunk).ids
            if number == 0:
                backend.prefill(self.kv, [Run(0, ids)], keep=0)
            else:
                if chunk not in self.canonicals:
                    self.canonicals[chunk] = backend.canonical(ids)
                backend.place(self.kv, row, self.canonicals[chunk])
            row += len(ids)


class Random(Blind):
    """The control: some rows, drawn at random, are computed again in context."""

    name = "random"

    def turn(self, step: Step, question: str) -> Tensor:
        count = self._next()
        self._place(self._context(count))
        end = len(self.asked) - count
        rows = sorted(random.Random(end).sample(range(end), round(SHARE * end)))
        ids = np.asarray(self.asked)
        runs = [Run(row, ids[row : row + 1]) for row in rows]
        return self.engine.backend.prefill(self.kv, [*runs, Run(end, ids[end:])], count)
