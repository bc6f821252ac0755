"""What the models of the quality tables are worth: conversions by loss, the closed-form encoder by scores."""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
Table = tuple[list[str], list[list[str]]]


def conversions() -> Table:
    """A row per conversion and text: loss before and after, and how far the logits are apart."""
    header = ["conversion", "text", "tokens", "loss before", "loss after", "KL", "largest logit difference"]
    rows = [row for name in ("mha", "mla") for row in _load(f"{name}_conversion")["rows"]]
    return header, [
        [
            row["step"],
            row["text"],
            f"{row['tokens']} of {row['length']}",
            f"{row['loss before']:.4f}",
            f"{row['loss after']:.4f}",
            f"{row['kl']:.1e}",
            f"{row['logits']:.1e}",
        ]
        for row in rows
    ]


def readouts() -> Table:
    """What the projectors say of drawings that the fit has not seen."""
    found: dict[str, dict[str, Any]] = _load("vlm_scores")["readouts"]
    return ["read", "n", "right"], [
        [name, str(row["n"]), ", ".join(f"{what} {row[what]:.3f}" for what in row if what != "n")]
        for name, row in found.items()
    ]


def tasks() -> Table:
    """Accuracy with pictures, with perfect embeddings of the same characters, and with the text itself."""
    found = _load("vlm_scores")
    shown = ("pictures", "spelled", "text")
    header = [f"task (n = {found['items']})", *shown]
    return header, [[name, *(_share(row[arm]) for arm in shown)] for name, row in found["tasks"].items()]


def _share(figure: list[float]) -> str:
    value, low, high = figure
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


def _load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found
