"""From a fitted model to a bound that holds, and how well both do on texts that neither has seen.

The bound is conformal: a quantile of measured / expected KL over windows that were not fitted on. What is
exchangeable is windows, not the rows of one, which share texts: so each window has the same mass, and one
more that nobody has seen is infinitely far off (hierarchical conformal prediction, Lee, Barber & Willett
2023). That gives the level on average over calibrations; so that most have it, the quantile is the upper end
of its bootstrap interval over windows. Few windows then make a large bound. To those set apart come the
windows of the fit, each as a fit without it sees it (cross-conformal, Vovk 2015).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from agentkv_orchestrator.cost import Evaluation, Figure, Judged
from agentkv_orchestrator.errors_model import ErrorModel

from agentkv.calibrate import fit
from agentkv.calibrate.fit import Rows
from agentkv.calibrate.report import WindowRecord
from agentkv.calibrate.texts import Part
from agentkv.errors import InvalidInput

LEVEL = 0.93
"""Share of edits whose KL is to stay below the bound. What an edit has left stays until it leaves, so that
turns miss a budget more often than edits miss their bound: at 0.9, one turn in twenty did and more."""
SURE = 0.9
"""Share of the resampled quantiles that the bound is at least as large as."""
FOLDS = 5
"""Parts of the fitted windows that are left out in turn."""
RESAMPLES = 400
NOISE = 1e-5
"""Nats that are no error: what two exact ways to compute the same may differ by."""
Predict = Callable[[Rows], np.ndarray]
"""Expected KL of every row."""


def calibrated(
    windows: Sequence[WindowRecord], rank: int, others: Mapping[str, Predict]
) -> tuple[ErrorModel, Evaluation]:
    """The fitted model with its bound, and both judged. others: simpler predictions to compare with.

    Raises InvalidInput while a part has no window with anything to measure.
    """
    parts = {part: fit.rows([w for w in windows if w.part == part]) for part in ("fit", "bound", "judge")}
    for part, found in parts.items():
        if not len(found.kl):
            raise InvalidInput(
                got=f"no window to {part} on among {len(windows)}",
                expected="at least one of each part",
                do="measure more (--windows)",
            )
    fitted, unseen = fit.fit(parts["fit"], rank, LEVEL), parts["judge"]
    apart = [(fit.expected(fitted, parts["bound"]), parts["bound"]), *_left_out(windows, rank)]
    model = fitted.scaled(bound(apart))
    known = [parts["bound"], parts["fit"]]
    factors = {name: bound([(predict(x), x) for x in known]) for name, predict in others.items()}
    expected = fit.expected(model, unseen)
    counts = {part: sum(w.part == part for w in windows) for part in _PARTS}
    return model, Evaluation(
        windows=counts["judge"],
        rows=len(unseen.kl),
        fitted_windows=counts["fit"],
        bounded_windows=counts["bound"],
        model=judged(expected, model.bound, unseen),
        others={name: judged(predict(unseen), factors[name], unseen) for name, predict in others.items()},
        edits=by_edit(expected * model.bound, unseen),
    )


_PARTS: tuple[Part, ...] = ("fit", "bound", "judge")


def _left_out(windows: Sequence[WindowRecord], rank: int) -> list[tuple[np.ndarray, Rows]]:
    """Windows of the fit as a model that was fitted without them expects them."""
    learned, found = [w for w in windows if w.part == "fit"], []
    for fold in range(min(FOLDS, len(learned))):
        rest = fit.rows([w for i, w in enumerate(learned) if i % FOLDS != fold])
        out = fit.rows([w for i, w in enumerate(learned) if i % FOLDS == fold])
        if len(rest.kl) and len(out.kl):
            found.append((fit.expected(fit.fit(rest, rank, LEVEL), out), out))
    return found


def bound(found: Sequence[tuple[np.ndarray, Rows]]) -> float:
    """The factor that takes expected KL, of windows that it was not fitted on, to the level.

    Fewer windows than 1/(1 - level) have no such factor: it is the largest that was seen then, and what it is
    worth the judged windows have to tell.
    """
    ratios = [_off(rows.kl, kl)[members] for kl, rows in found for members in _members(rows)]
    rng = np.random.default_rng(0)
    draws = [rng.integers(0, len(ratios), len(ratios)) for _ in range(RESAMPLES)]
    return float(np.quantile([_quantile([ratios[i] for i in draw]) for draw in draws], SURE))


def _quantile(ratios: Sequence[np.ndarray]) -> float:
    """Of windows that weigh the same, one of them unseen and infinite."""
    each = np.concatenate(ratios)
    mass = np.concatenate([np.full(len(r), 1 / (len(ratios) + 1) / len(r)) for r in ratios])
    order = np.argsort(each)
    enough = np.flatnonzero(np.cumsum(mass[order]) >= LEVEL)
    return float(each[order][enough[0] if len(enough) else -1])


def judged(expected: np.ndarray, factor: float, found: Rows) -> Judged:
    """How expected KL, and the bound that is `factor` times as much, did."""
    covered = found.kl <= factor * expected + NOISE
    slack = 1 / _off(found.kl, factor * expected)
    return Judged(
        rank_correlation=_over(found, lambda rows: spearman(expected[rows], found.kl[rows])),
        coverage=_over(found, lambda rows: float(covered[rows].mean())),
        slack=_over(found, lambda rows: float(np.median(slack[rows]))),
    )


def by_edit(limit: np.ndarray, found: Rows) -> dict[str, float]:
    """Coverage by edit."""
    names = np.array(found.edit)
    covered = found.kl <= limit + NOISE
    return {str(name): round(float(covered[names == name].mean()), 4) for name in sorted(set(found.edit))}


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Correlation of ranks, ties at their mean rank; 0 where one of the two is constant."""
    x, y = _ranks(a), _ranks(b)
    return float(np.corrcoef(x, y)[0, 1]) if x.std() and y.std() else 0.0


def _ranks(values: np.ndarray) -> np.ndarray:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(count) - (count - 1) / 2)[place])


def _off(measured: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """measured / expected; what is below the floor in both is equal."""
    return np.asarray((measured + NOISE) / (expected + NOISE))


def _members(found: Rows) -> list[np.ndarray]:
    """Rows of every window: they share texts, so it is windows that are resampled."""
    return [np.flatnonzero(found.cluster == cluster) for cluster in np.unique(found.cluster)]


def _over(found: Rows, statistic: Callable[[np.ndarray], float]) -> Figure:
    """A figure over all rows, with its 95 % bootstrap interval over windows."""
    rng, members = np.random.default_rng(0), _members(found)
    draws = [
        statistic(np.concatenate([members[i] for i in rng.integers(0, len(members), len(members))]))
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(draws, [0.025, 0.975])
    value = statistic(np.arange(len(found.kl)))
    return Figure(value=round(value, 4), low=round(float(low), 4), high=round(float(high), 4))
