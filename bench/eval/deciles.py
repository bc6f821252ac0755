"""The cost table that came before the fitted model, as a baseline: ninth deciles of whole windows.

Measured over windows of five 256-token READMEs (bench/results/quality_smollm2.json): what survivors lose is
a curve over the share of the window's tokens that left or came, a chunk answers for its share of the tokens,
and one that was brought in, or is a bare canonical, answers in full.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from agentkv.calibrate.fit import Rows

QUALITY = Path(__file__).parents[1] / "results" / "quality_smollm2.json"
LEVEL = 0.9
SLIDE, SLIDES, HOLE = "slide, 1 of 5 leaves", "slide, 2 of 5 leave", "hole, the third of 5 leaves"
INSERTED, PERMUTED = "an antecedent re-inserted in front", "a set of three permuted"
TAIL, ORBIT = "recall at the tail", "three predecessors permuted, the last chunk only"


class Deciles:
    """Predictions of that table."""

    def __init__(self) -> None:
        self._windows = json.loads(QUALITY.read_text())["windows"]
        # The two behind the hole were stale, of the four that stay; the four behind an insertion, of five.
        canonical = self._decile(TAIL, "rotate")
        self._slide = [(0.2, self._decile(SLIDE)), (0.4, self._decile(SLIDES)), (1.0, canonical)]
        self._hole = [(0.2, self._decile(HOLE) / 0.5), (1.0, canonical)]
        self._inserted = [(0.2, self._decile(INSERTED) / 0.8), (1.0, canonical)]
        self._removal = self._decile(SLIDE, "keep + R + removal patch 32") / self._slide[0][1]
        self._fixed = {
            "canonical": canonical,
            "patch": self._decile(TAIL, "energy 32 in bf16 (half the bytes)"),
            "orbit": self._decile(ORBIT, "orbit patch 32, target order held out"),
        }
        self._permuted = self._decile(PERMUTED)

    def _decile(self, operation: str, arm: str = "keep + R") -> float:
        return float(np.quantile([w[operation][arm]["kl"] for w in self._windows], LEVEL))

    def __call__(self, found: Rows) -> np.ndarray:
        """KL of every row, in nats: [rows]."""
        c = found.cases
        left, came = c["lost"] / (c["lost"] + c["window"]), c["gained"] / c["window"]
        stale = np.where(c["hole"], _curve(self._hole, left), _curve(self._slide, left))
        stale = stale + _curve(self._inserted, came) + self._permuted * c["reordered"]
        weight = np.where(c["brought"], 1.0, c["tokens"] / c["window"])
        fixed = self._fixed
        by_treatment = {
            "stale": stale * weight,
            "near": (stale + fixed["patch"]) * weight,
            "patch": fixed["patch"] * weight,
            "orbit": fixed["orbit"] * weight,
            "removal": self._removal * stale * weight,
            "canonical": np.full(len(weight), fixed["canonical"]),
        }
        kl = sum(np.where(c["treatment"] == name, each, 0.0) for name, each in by_treatment.items())
        return np.bincount(found.row, kl, len(found.kl))


def _curve(points: list[tuple[float, float]], share: np.ndarray) -> np.ndarray:
    """Piecewise linear from (0, 0) through the points."""
    x, y = zip((0.0, 0.0), *points, strict=True)
    return np.interp(share, x, y)
