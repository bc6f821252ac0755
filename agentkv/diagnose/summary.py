"""From windows to figures: means and η with their intervals, and the cost table that the planner reads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import date

import numpy as np
from agentkv_orchestrator.cost import CostTable, Time, Timed

from agentkv.calibrate import Errors, Stale
from agentkv.diagnose.pair import RANK
from agentkv.diagnose.report import (
    Diagnosis,
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


def cost_table(found: Diagnosis, times: dict[Timed, Time]) -> CostTable:
    """What `Engine.from_pretrained(..., costs=)` takes, from a diagnosis with at least one window."""
    windows, count = found.windows, found.settings.chunks
    hole = count // 2  # as many stand in front of it

    def edit(name: str) -> list[float]:
        return [w.edits[name].keep for w in windows]

    errors = Errors(
        slide=[Stale(1 / count, edit("slide_1")), Stale(2 / count, edit("slide_2"))],
        hole=[Stale(1 / count, edit("hole"), affected=(count - 1 - hole) / (count - 1))],
        inserted=[Stale(1 / count, edit("insert"), affected=(count - 1) / count)],
        permuted=edit("reorder"),
        canonical=[w.blind for w in windows],
        patch=[w.rank[RANK] for w in windows],
        orbit=[w.orbit for w in windows],
        removal=[w.removal for w in windows],
    )
    return CostTable(
        model=found.model.name,
        hardware=found.hardware,
        threads=found.settings.threads,
        measured_on=date.today().isoformat(),
        note=f"Written by agentkv diagnose. KL: the ninth decile over {len(windows)} windows of {count} "
        f"chunks of {found.settings.chunk_tokens} tokens.",
        ms=times,
        kl=errors.table(),
    )


def _mean(samples: Iterable[float]) -> Figure:
    return _figure(interval([*samples]))


def _layers(profiles: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(np.mean(profiles, axis=0).tolist())


def _figure(found: Interval) -> Figure:
    value, low, high = found
    return Figure(value=value, low=low, high=high)
