"""Several runs of new tokens in one forward, each cut where its tokens start to see each other both ways."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from agentkv.attention.band import attend_band
from agentkv.attention.full import attend_at_once, attend_full
from agentkv.attention.scattered import attend_scattered

SCATTERED = 16
"""Tokens of a run up to which neighbours in a forward share one pass over the keys."""


@dataclass(frozen=True, eq=False)
class Rule:
    """How a layer weighs what it sees.

    scale: factor on q·k. window: rows a query sees, its own included; None: all in front. softcap: c in
    c·tanh(score / c). sinks: ``[Hq]``, a learned logit per head that takes weight and gives nothing.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None


class Span(NamedTuple):
    """Where a run of a forward stands: its ``tokens`` are the rows that end before row ``end`` of the keys.

    both_ways: ranges ``[a, b)`` of the run's tokens that see each other in both directions, in order.
    """

    tokens: int
    end: int
    both_ways: tuple[tuple[int, int], ...] = ()

    def pieces(self) -> Iterator[tuple[int, int, bool]]:
        """(first, last, causal) of the run's tokens, in order."""
        at = 0
        for first, last in self.both_ways:
            if first > at:
                yield at, first, True
            yield first, last, False
            at = last
        if at < self.tokens:
            yield at, self.tokens, True


def attend_runs(
    q: Tensor, k: Tensor, v: Tensor, rule: Rule, runs: Sequence[tuple[int, int] | Span]
) -> Tensor:
    """Every run sees the rows in front of it and nothing behind, but for what it sees both ways.

    Since the fresh keys of all runs are in ``k`` before any of them attends, a later run sees what an
    earlier one just computed: the result is that of one forward per run, at the cost of one. q ``[1, Hq,
    ΣT, D]``, k ``[1, H, N, D]``, v ``[1, H, N, Dv]``; returns ``[1, Hq, ΣT, Dv]``.
    """
    parts, done = [], 0
    for scattered, group in itertools.groupby((Span(*run) for run in runs), _small):
        spans = list(group)
        if scattered and len(spans) > 1:
            rows = [row for span in spans for row in range(span.end - span.tokens, span.end)]
            parts.append(_attend_rows(q[:, :, done : done + len(rows)], k, v, rule, rows))
            done += len(rows)
            continue
        for span in spans:
            for first, last, causal in span.pieces():
                stop = span.end - span.tokens + last
                piece = q[:, :, done + first : done + last]
                parts.append(_attend(piece, k[:, :, :stop], v[:, :, :stop], rule, causal))
            done += span.tokens
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _small(span: Span) -> bool:
    """Too few tokens for a pass over the keys of their own."""
    return span.tokens <= SCATTERED and not span.both_ways


def _attend_rows(q: Tensor, k: Tensor, v: Tensor, rule: Rule, rows: list[int]) -> Tensor:
    at = torch.tensor(rows, device=q.device)
    stop = rows[-1] + 1
    window = rule.window if rule.window and rule.window < stop else None
    out, lse = attend_scattered(q, k[:, :, :stop], v[:, :, :stop], rule.scale, at, window, rule.softcap)
    return _sunk(out, lse, rule).to(q.dtype)


def _attend(q: Tensor, k: Tensor, v: Tensor, rule: Rule, causal: bool) -> Tensor:
    window = rule.window if rule.window and rule.window < k.shape[2] else None
    whole = not causal or q.shape[2] in (1, k.shape[2])
    if whole and q.device.type != "cpu" and not window and rule.softcap is None and rule.sinks is None:
        return attend_at_once(q, k, v, rule.scale, causal)
    if window or rule.softcap is not None:
        out, lse = attend_band(q, k, v, rule.scale, causal, window, rule.softcap)
    else:
        out, lse = attend_full(q, k, v, rule.scale, causal)
    return _sunk(out, lse, rule).to(q.dtype)


def _sunk(out: Tensor, lse: Tensor, rule: Rule) -> Tensor:
    if rule.sinks is None:
        return out
    # One more term in the denominator: e^lse / (e^lse + e^sink).
    return out * torch.sigmoid(lse - rule.sinks[:, None].to(lse.dtype))[..., None]
