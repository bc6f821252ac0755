"""The error model fitted to measured windows: quantile regression of log KL over the sums of their chunks.

In the logarithm a window of small KL counts as much as one of large KL, and all factors are sums. Quantiles
are found by reweighted least squares (Schlossmacher 1973), each with the damped steps of Levenberg (1944) and
Marquardt (1963) from round figures; a weak pull towards them decides what the windows say nothing about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from agentkv_orchestrator.errors_model import Curve, ErrorModel

from agentkv.calibrate.cases import Case
from agentkv.calibrate.report import WindowRecord

FLOOR = 1e-4
"""Nats that are added before logarithms are taken: less than that is nothing, whatever its logarithm."""
START: Mapping[str, float] = {
    "slide": 0.05,
    "slide_power": 0.7,
    "hole": 0.05,
    "hole_power": 0.7,
    "inserted": 0.05,
    "inserted_power": 0.7,
    "recalled": 0.05,
    "recalled_power": 0.7,
    "reordered": 0.02,
    "canonical": 0.1,
    "patch": 0.001,
    "orbit": 0.01,
    "removal": 0.02,
    "rank_power": 2.0,
    "first": 0.8,
    "near": 16.0,
}
"""Round figures: what is fitted are their logarithms, as all of them are positive. Kinds start at 1."""
QUANTILE = 0.75
"""Of KL, that is fitted. What is done to a chunk differs in how much its KL scatters, and the bound has one
factor for all: over the upper quartile it leaves less room than over the median."""
_PULL, _SHAPES = 0.5, 2.0
"""Of the pull towards START, for scales and for powers and kinds: a parameter that is off by a factor of
e^(1/pull) costs what a window off by e does."""
_STEPS, _ROUNDS = 20, 8
_SMOOTH = 0.3
"""Logarithms by which a window may be off before its weight falls."""


@dataclass(frozen=True)
class Rows:
    """Cases of many windows as columns, and how they sum up to measured KLs.

    row: int [cases], the row a case belongs to. kl: [rows] measured. cluster: int [rows], the window drawn.
    """

    cases: Mapping[str, np.ndarray]
    row: np.ndarray
    kl: np.ndarray
    cluster: np.ndarray
    edit: tuple[str, ...]


def rows(windows: Sequence[WindowRecord]) -> Rows:
    """One row for every arm and question."""
    cases, row, kl, cluster, names = list[Case](), list[int](), list[float](), list[int](), list[str]()
    for number, window in enumerate(windows):
        for edit in window.edits:
            for arm in edit.arms:
                for measured in arm.kl:
                    row += [len(kl)] * len(arm.cases)
                    cases += arm.cases
                    kl.append(measured)
                    cluster.append(number)
                    names.append(edit.name)
    columns = {name: np.array([getattr(c, name) for c in cases]) for name in Case._fields}
    return Rows(columns, np.array(row, dtype=int), np.array(kl), np.array(cluster, dtype=int), tuple(names))


def expected(model: ErrorModel, found: Rows) -> np.ndarray:
    """What the model expects of every row, in nats, not times its bound: [rows]."""
    names = sorted(model.kinds)
    return _expected(_unpacked(model), names, found, model.rank)


def fit(found: Rows, rank: int, level: float) -> ErrorModel:
    """The model of these rows, with a bound of 1 for now. rank: that its figures of patches are for."""
    names = sorted(set(found.cases["kind"]))
    x = np.array([*np.log(list(START.values())), *np.zeros(len(names))])
    shapes = [name.endswith("_power") for name in START] + [True] * len(names)
    pull = np.where(shapes, _SHAPES, _PULL)
    start, target = x.copy(), np.log(found.kl + FLOOR)

    def off(x: np.ndarray) -> np.ndarray:
        return np.asarray(np.log(_expected(_named(x, names), names, found, rank) + FLOOR) - target)

    weight = np.ones(len(target))

    def residuals(x: np.ndarray) -> np.ndarray:
        return np.concatenate([np.sqrt(weight) * off(x), pull * (x - start)])

    for _ in range(_ROUNDS):
        x = _least_squares(residuals, x)
        now = off(x)
        weight = 2 * np.where(now < 0, QUANTILE, 1 - QUANTILE) / np.maximum(np.abs(now), _SMOOTH)
    model = _model(_named(x, names), names, rank, level)
    # So far a quantile; what is expected is the mean.
    mean = found.kl.sum() / expected(model, found).sum()
    return _model(_named(x, names, float(np.log(mean))), names, rank, level)


_SCALES = ("slide", "hole", "inserted", "recalled", "reordered", "canonical", "patch", "orbit")
"""What is multiplied by the factor of a kind."""


def _least_squares(residuals: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    """Damped Gauss-Newton steps from `x` until they gain nothing."""
    damping, now = 1.0, residuals(x)
    for _ in range(_STEPS):
        slope = np.stack([(residuals(x + step) - now) / 1e-5 for step in 1e-5 * np.eye(len(x))], 1)
        moved = x - np.linalg.solve(slope.T @ slope + damping * np.eye(len(x)), slope.T @ now)
        then = residuals(moved)
        if then @ then < now @ now:
            gained = 1 - (then @ then) / (now @ now)
            x, now, damping = moved, then, damping / 3
            if gained < 1e-4:
                break
        else:
            damping *= 4
    return x


def _named(x: np.ndarray, kinds: Sequence[str], more: float = 0.0) -> dict[str, float]:
    """Parameters by name; `more` is added to the logarithms of the scales. Factors of kinds have mean 0."""
    values = dict(zip([*START, *kinds], map(float, x), strict=True))
    middle = float(np.mean([values[kind] for kind in kinds]))
    values |= {kind: values[kind] - middle for kind in kinds}
    values |= {name: values[name] + middle + more for name in _SCALES}
    return values | {"first": values["first"] + more}


def _expected(p: Mapping[str, float], kinds: Sequence[str], found: Rows, rank: int) -> np.ndarray:
    """`ErrorModel` over all cases at once, summed up to rows."""
    c = found.cases
    near, behind = np.exp(p["near"]), c["window"] - c["front"] - c["tokens"]
    weight = np.log1p(c["tokens"] / (near + behind)) / np.log1p(c["window"] / near)
    weight = weight * np.exp([p[kind] for kind in kinds])[np.searchsorted(kinds, c["kind"])]
    lost = c["lost"] / np.maximum(1, c["lost"] + c["front"] - c["gained"])
    came = c["gained"] / np.maximum(1, c["front"])
    slid = np.exp(p["slide"]) * lost ** np.exp(p["slide_power"])
    torn = np.exp(p["hole"]) * lost ** np.exp(p["hole_power"])
    inserted = np.exp(p["inserted"]) * came ** np.exp(p["inserted_power"])
    recalled = np.exp(p["recalled"]) * came ** np.exp(p["recalled_power"])
    stale = np.where(c["hole"], torn, slid) + np.where(c["brought"], recalled, inserted)
    stale = (stale + np.exp(p["reordered"]) * c["reordered"]) * weight
    touched = (c["lost"] > 0) | (c["reordered"] > 0)
    stale = np.where(c["front"] > 0, stale, np.exp(p["first"]) * touched)
    bare = np.where(c["front"] > 0, np.exp(p["canonical"]) * weight, np.exp(p["first"]))
    patch = (np.maximum(c["rank"], 1) / rank) ** -np.exp(p["rank_power"]) * weight
    by_treatment = {
        "stale": stale,
        "near": stale + np.exp(p["patch"]) * patch,
        "patch": np.exp(p["patch"]) * patch,
        "orbit": np.exp(p["orbit"]) * weight,
        "removal": np.exp(p["removal"]) * stale,
        "canonical": bare,
    }
    kl = sum(np.where(c["treatment"] == name, each, 0.0) for name, each in by_treatment.items())
    return np.bincount(found.row, kl, len(found.kl))


def _model(p: Mapping[str, float], kinds: Sequence[str], rank: int, level: float) -> ErrorModel:
    e = {name: float(np.exp(value)) for name, value in p.items()}
    return ErrorModel(
        level=level,
        bound=1.0,
        slide=Curve(scale=e["slide"], power=e["slide_power"]),
        hole=Curve(scale=e["hole"], power=e["hole_power"]),
        inserted=Curve(scale=e["inserted"], power=e["inserted_power"]),
        recalled=Curve(scale=e["recalled"], power=e["recalled_power"]),
        reordered=e["reordered"],
        canonical=e["canonical"],
        patch=e["patch"],
        orbit=e["orbit"],
        removal=min(1.0, e["removal"]),
        rank=rank,
        rank_power=e["rank_power"],
        first=e["first"],
        near=e["near"],
        kinds={kind: e[kind] for kind in kinds},
    )


def _unpacked(m: ErrorModel) -> dict[str, float]:
    """Inverse of `_model`."""
    curves = {name: getattr(m, name) for name in ("slide", "hole", "inserted", "recalled")}
    found = {name: curve.scale for name, curve in curves.items()}
    found |= {f"{name}_power": curve.power for name, curve in curves.items()}
    found |= {name: getattr(m, name) for name in START if name not in found} | m.kinds
    with np.errstate(divide="ignore"):
        return {name: float(np.log(value)) for name, value in found.items()}
