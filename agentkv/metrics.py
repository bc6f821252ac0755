"""η, greedy agreement, and the bootstrap intervals of figures that come item by item."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

RESAMPLES = 2000

Interval = tuple[float, float, float]
"""A figure, and the 2.5 and 97.5 % quantiles of its resamples."""


def agreement(truth: Tensor, arm: Tensor) -> int:
    """Greedy tokens equal until the first divergence; logits [T, vocab] over the truth's greedy tokens.

    Teacher-forced on the truth's continuation, which is the same as decoding freely up to there.
    """
    same = truth.argmax(-1) == arm.argmax(-1)
    return int(same.long().cumprod(0).sum())


def interval(samples: Sequence[float]) -> Interval:
    """Mean and its 95 % bootstrap interval over items."""
    return bootstrap(lambda x: x.mean(-1), np.asarray(samples)[None])


def eta(arm: Sequence[float], blind: Sequence[float]) -> Interval:
    """η = 1 - Σ KL_arm / Σ KL_blind with its 95 % interval, resampling items (both KLs together)."""
    return bootstrap(
        lambda x: 1 - x[0].sum(-1) / x[1].sum(-1), np.stack([np.asarray(arm), np.asarray(blind)])
    )


def bootstrap(statistic: Callable[[np.ndarray], np.ndarray], data: np.ndarray) -> Interval:
    """`statistic` of data [k, n] along the last axis, with its interval; the same data give the same one.

    statistic: [k, ..., n] -> [...], called with [k, resamples, n] and [k, 1, n].
    """
    rng = np.random.default_rng(0)
    picks = rng.integers(0, data.shape[1], (RESAMPLES, data.shape[1]))
    draws = np.ravel(statistic(data[:, picks]))
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(np.ravel(statistic(data[:, None]))[0]), float(low), float(high)
