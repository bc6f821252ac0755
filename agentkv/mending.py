"""Some rows of a chunk computed in context: query-guided repair, and patches estimated from a few rows.

Repair (RelaxKV's anchors, one set for all layers): what is asked runs over the KV as it was put in place; of
each chunk the rows that it attends most run through the model again, every one behind all that stands in
front of it; then what is asked runs over the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from agentkv_orchestrator.plan import EstimatePatch, Mending, Prefill, Repair
from torch import Tensor

from agentkv.backends.base import Backend
from agentkv.cache import Run, WindowKV
from agentkv.errors import UnsupportedModel
from agentkv.media import Tokens
from agentkv.patches import Patch

TokensOf = Callable[[str], Tokens]


class Estimator(Protocol):
    """Guesses what a chunk's canonical misses in its context from a few of its rows."""

    def estimate(self, backend: Backend, kv: WindowKV, run: Run, rows: int) -> Patch:
        """The patch for the canonical that stands at ``run`` in ``kv``.

        rows: how many of its tokens may run through the model. What it writes to the chunk's own rows is
        written over afterwards; other rows are not its to change.
        """
        ...


def neighbours(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ascending rows as stretches ``first : stop`` without a gap."""
    starts = [i for i, row in enumerate(rows) if i == 0 or rows[i - 1] != row - 1]
    for a, b in zip(starts, [*starts[1:], len(rows)], strict=True):
        yield rows[a], rows[a] + b - a


def run_of(op: Prefill | Mending, tokens_of: TokensOf, row: int, position: int) -> Run:
    """The chunk of an op as a run."""
    ids, media = tokens_of(op.chunk)
    return Run(row, ids, position, media)


class Mender:
    """Runs what a plan computes when some of it mends rows that others stand behind."""

    def __init__(self, backend: Backend, tokens_of: TokensOf, estimator: Estimator | None) -> None:
        self.backend, self.tokens_of, self.estimator = backend, tokens_of, estimator

    def run(
        self, kv: WindowKV, mending: Sequence[tuple[Mending, int, int]], prefills: Sequence[Run], keep: int
    ) -> Tensor | None:
        """Mend chunks, given with first row and position, and compute ``prefills`` (by row) behind them.

        Returns logits of the last ``keep`` tokens, None without prefills. Raises UnsupportedModel for an
        estimate without an estimator.
        """
        repairs = [m for m in mending if isinstance(m[0], Repair)]
        estimates = [m for m in mending if isinstance(m[0], EstimatePatch)]
        last = max((row for _, row, _ in estimates), default=-1)
        early = list(prefills) if repairs else [run for run in prefills if run.row < last]
        if early:
            attention = self.backend.ask(kv, early)
        for op, row, position in estimates:
            self._estimate(kv, op, row, position)
        again = [run for op, row, _ in repairs for run in self._attended(kv, op, row, attention)]
        first = min(row for _, row, _ in mending)
        again += [run for run in prefills if run.row > first or run.row not in {r.row for r in early}]
        again.sort(key=lambda run: run.row)
        return self.backend.prefill(kv, again, keep) if again else None

    def _estimate(self, kv: WindowKV, op: Mending, row: int, position: int) -> None:
        if self.estimator is None:
            raise UnsupportedModel(
                got="a plan that estimates a patch, and no estimator",
                expected="an engine with one",
                do="pass estimator= to the engine, or a cost table without kl.estimated",
            )
        placed = self.backend.read(kv, row, row + op.tokens)
        patch = self.estimator.estimate(self.backend, kv, run_of(op, self.tokens_of, row, position), op.rows)
        self.backend.place(kv, row, placed, patch, position)

    def _attended(self, kv: WindowKV, op: Mending, row: int, attention: Tensor) -> Iterator[Run]:
        """The rows of a chunk that are attended most, neighbours as one run. attention: from the first live
        row on."""
        ids = self.tokens_of(op.chunk).ids
        mine = attention[row - kv.start : row - kv.start + op.tokens]
        picked = torch.topk(mine, op.rows).indices.sort().values.tolist()
        for first, stop in neighbours(picked):
            yield Run(row + first, ids[first:stop], int(kv.positions[row + first]))
