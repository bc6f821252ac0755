"""Simpler predictions of a window's KL, which a fitted model has to beat.

They get a bound like its own; what differs is how well they tell one edit from another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from agentkv.calibrate.fit import Rows


def constant(found: Rows) -> np.ndarray:
    """The same for every window that is approximate anywhere."""
    return np.ones(len(found.kl))


def chunks(found: Rows) -> np.ndarray:
    """So much for every approximate chunk."""
    return np.bincount(found.row, minlength=len(found.kl)).astype(float)


def share(found: Rows) -> np.ndarray:
    """The share of the window's tokens that are approximate."""
    each = found.cases["tokens"] / found.cases["window"]
    return np.bincount(found.row, each, len(found.kl))


BASELINES: Mapping[str, Callable[[Rows], np.ndarray]] = MappingProxyType(
    {"a constant": constant, "number of chunks": chunks, "share of tokens": share}
)
