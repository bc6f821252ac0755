"""What the quality runs wrote, as table rows: python -m bench.eval.tables [quality|binding] [file]

Every figure is computed from the per-item JSON, with a bootstrap interval over items.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentkv.metrics import eta, interval

RESULTS = Path(__file__).parents[1] / "results"
Table = tuple[list[str], list[list[str]]]


def quality(path: Path = RESULTS / "quality_smollm2.json") -> Table:
    """Operation, arm, KL over the question, η, KL over the answer, greedy tokens that agree."""
    state = json.loads(path.read_text())
    windows = state["windows"]
    rows = []
    for operation in (key for key in windows[0] if key != "size"):
        arms = list(windows[0][operation])
        blind = _column(windows, operation, arms[0], "kl")
        for arm in arms:
            own = _column(windows, operation, arm, "kl")
            agree = interval(_column(windows, operation, arm, "agree"))
            rows.append(
                [
                    operation,
                    arm,
                    _spread(interval(own), 4),
                    "" if arm == arms[0] else _spread(eta(own, blind), 2),
                    f"{interval(_column(windows, operation, arm, 'kl_answer'))[0]:.4f}",
                    _spread(agree, 1),
                ]
            )
    n, answer = len(windows), state["answer_tokens"]
    header = [
        "operation",
        f"arm (n = {n})",
        "KL, question",
        "η",
        "KL, answer",
        f"greedy tokens equal of {answer}",
    ]
    return header, rows


def binding(path: Path = RESULTS / "binding_qwen05.json") -> Table:
    """Arm, accuracy, its share of re-prefill's, same choice as re-prefill, KL at the answer."""
    items = json.loads(path.read_text())["items"]
    truth = [item["arms"]["re-prefill"]["choice"] for item in items]
    right = {
        arm: [item["arms"][arm]["choice"] == item["answer"] for item in items] for arm in items[0]["arms"]
    }
    rows = []
    for arm, hits in right.items():
        same = [item["arms"][arm]["choice"] == t for item, t in zip(items, truth, strict=True)]
        gap = [item["arms"][arm]["kl"] for item in items]
        rows.append(
            [
                arm,
                _spread(interval([float(h) for h in hits]), 2),
                f"{sum(hits) / sum(right['re-prefill']):.2f}",
                _spread(interval([float(s) for s in same]), 2),
                _spread(interval(gap), 3),
            ]
        )
    header = [f"B's KV (n = {len(items)})", "accuracy", "of re-prefill's", "same choice as re-prefill", "KL"]
    return header, rows


def _column(windows: Sequence[dict[str, Any]], operation: str, arm: str, key: str) -> list[float]:
    return [window[operation][arm][key] for window in windows]


def _spread(value: tuple[float, float, float], digits: int) -> str:
    middle, low, high = (f"{v:.{digits}f}" for v in value)
    return f"{middle} [{low}, {high}]"


def main(arguments: Sequence[str]) -> None:
    """Print one table, or both."""
    from bench.tables import markdown

    names = arguments[:1] or ["quality", "binding"]
    for name in names:
        make = {"quality": quality, "binding": binding}[name]
        print(markdown(*(make(Path(arguments[1])) if len(arguments) > 1 else make())))


if __name__ == "__main__":
    main(sys.argv[1:])
