"""From windows to figures: means and η with their intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from agentkv.diagnose.report import (
    EditFigures,
    Figure,
    Rank,
    Repair,
    Summary,
    WindowRecord,
)
from agentkv.metrics import Interval, bootstrap, eta, interval

FUNCTIONAL = 0.95
"""η from which a patch counts as good as a re-prefill (Kamera's functional rank)."""

Windows = Sequence[WindowRecord]


def summarise(windows: Windows, chunk_tokens: int, token_bytes: int) -> Summary:
    """All figures over at least one window."""
    first = windows[0]
    return Summary(
        n=len(windows),
        noise=_mean(w.noise for w in windows),
        blind=_mean(w.blind for w in windows),
        kl_rank={rank: _mean(w.rank[rank] for w in windows) for rank in first.rank},
        edits={
            name: EditFigures(
                keep=_mean(w.edits[name].keep for w in windows),
                canonical=_mean(w.edits[name].canonical for w in windows),
            )
            for name in first.edits
        },
        removal=_mean(w.removal for w in windows),
        eta=repair(windows),
        functional_rank=functional_rank(windows),
        components={name: _mean(w.components[name] for w in windows) for name in first.components},
        profile={name: _layers([w.profile[name] for w in windows]) for name in first.profile},
        page_bytes=chunk_tokens * token_bytes,
        patch_bytes=round(sum(w.patch_bytes for w in windows) / len(windows)),
    )


def repair(windows: Windows) -> Repair:
    """η of every arm on the last chunk of the windows."""
    first, blind = windows[0], [w.blind for w in windows]

    def of(arm: Iterable[float]) -> Figure:
        return _figure(eta([*arm], blind))

    return Repair(
        rank={rank: of(w.rank[rank] for w in windows) for rank in first.rank},
        depth={name: of(w.depth[name] for w in windows) for name in first.depth},
        shared=of(w.shared for w in windows),
        orbit=of(w.orbit for w in windows),
        oracle={share: of(w.oracle[share] for w in windows) for share in first.oracle},
        random={share: of(w.random[share] for w in windows) for share in first.random},
    )


def functional_rank(windows: Windows) -> Rank:
    """The smallest rank tried from which η ≥ 0.95 over all windows; its interval goes to the next rank
    outwards."""
    ranks = sorted(windows[0].rank)
    data = np.array([[w.blind for w in windows], *([w.rank[r] for w in windows] for r in ranks)])

    def place(x: np.ndarray) -> np.ndarray:
        enough = 1 - x[1:].sum(-1) / x[0].sum(-1) >= FUNCTIONAL  # [ranks, ...]
        return np.where(enough.any(0), enough.argmax(0), len(ranks))

    value, low, high = bootstrap(place, data)
    named = dict(enumerate(ranks))
    return Rank(value=named.get(int(value)), low=named.get(math.floor(low)), high=named.get(math.ceil(high)))


def _mean(samples: Iterable[float]) -> Figure:
    return _figure(interval([*samples]))


def _layers(profiles: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(np.mean(profiles, axis=0).tolist())


def _figure(found: Interval) -> Figure:
    value, low, high = found
    return Figure(value=value, low=low, high=high)
