"""What the runs over windows of documents wrote, as table rows: what can go, and what branches cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from agentkv_orchestrator.policy import Policy

from agentkv.metrics import interval

RESULTS = Path(__file__).parents[1] / "results"
Table = tuple[list[str], list[list[str]]]
Score = Callable[[dict[str, Any], int], float]
"""How much a document matters, by its row and its place in the window."""

THRESHOLD = Policy().kl_budget
"""KL up to which a document can go."""


def _of(key: str, kl: str) -> Score:
    return lambda row, _: float(row[key][kl])


_ROWS, _CLEAN = "rows not attended", "dependents clean"
TESTS: dict[str, tuple[str, Score]] = {
    "its rows are not attended: the answer": (_ROWS, _of(_ROWS, "kl")),
    "its rows are not attended: first token of the answer": (_ROWS, _of(_ROWS, "kl_first")),
    "its rows are not attended: the question": (_ROWS, _of(_ROWS, "kl_question")),
    "and its dependents are canonicals: the answer": (_CLEAN, _of(_CLEAN, "kl")),
    "and its dependents are canonicals: first token": (_CLEAN, _of(_CLEAN, "kl_first")),
    "attention that the question pays to it": ("attention", lambda row, _: row["attention"]["kl"]),
    "age, the oldest first": ("", lambda _, place: place),
}
"""By name: the key of its time, and its score. Chance and the truth are worked out."""


def load(name: str) -> list[dict[str, Any]]:
    """The windows of a run."""
    found: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text())["windows"]
    return found


def disposable(windows: Sequence[dict[str, Any]]) -> Table:
    """A row a test: does it order the documents of a window as the truth does, what does following it cost,
    and how often does it let go what mattered."""
    documents = sum(len(w["documents"]) for w in windows)
    header = [
        f"test (n = {len(windows)} windows, {documents} documents)",
        "rank correlation",
        "KL of letting the least one go",
        f"wrong of those under {THRESHOLD:g}",
        "one document",
    ]
    rows = [_row(name, key, score, windows) for name, (key, score) in TESTS.items()]
    chance = [float(np.mean([d["truth"] for d in w["documents"]])) for w in windows]
    best = [min(d["truth"] for d in w["documents"]) for w in windows]
    taken = float(np.median([d["truth_ms"] for w in windows for d in w["documents"]]))
    rows.append(["chance", "0", spread(interval(chance), 3), "", ""])
    rows.append(["the truth: a re-prefill without it", "1", spread(interval(best), 3), "", f"{taken:.0f} ms"])
    return header, rows


def _row(name: str, key: str, score: Score, windows: Sequence[dict[str, Any]]) -> list[str]:
    said = [[score(d, place) for place, d in enumerate(w["documents"])] for w in windows]
    true = [[d["truth"] for d in w["documents"]] for w in windows]
    correlations = [spearman(a, b) for a, b in zip(said, true, strict=True)]
    picked = [b[int(np.argmin(a))] for a, b in zip(said, true, strict=True)]
    wrong, taken = "", ""
    if key and key != "attention":
        let_go = [
            t for a, b in zip(said, true, strict=True) for s, t in zip(a, b, strict=True) if s <= THRESHOLD
        ]
        wrong = f"{sum(t > THRESHOLD for t in let_go)} of {len(let_go)}"
    if key:
        taken = f"{np.median([d[key]['ms'] for w in windows for d in w['documents']]):.0f} ms"
        taken += ", the answer given" if key == _CLEAN else ""
    return [name, spread(interval(correlations), 2), spread(interval(picked), 3), wrong, taken]


def branches(windows: Sequence[dict[str, Any]]) -> Table:
    """A row an operation: milliseconds, bytes and KL, as medians over the windows."""
    forks, cleans = [w["fork"] for w in windows], [w["clean"] for w in windows]

    def ms(rows: Sequence[dict[str, float]], key: str) -> str:
        return f"{np.median([row[key] for row in rows]):.1f} ms"

    def kl(key: str) -> str:
        return spread(interval([row[key] for row in cleans]), 4)

    live = f"{np.median([f['live_bytes'] for f in forks]) / 2**20:.1f} MiB"
    return [f"operation (n = {len(windows)})", "time", "bytes", "KL over the answer"], [
        ["fork", ms(forks, "fork_ms"), "0", "0"],
        ["first commit on the branch, 32 tokens appended", ms(forks, "first_ms"), live, "0"],
        ["the same commit where the rows are its own", ms(forks, "alone_ms"), "0", "0"],
        ["copying the rows, alone", ms(forks, "copy_ms"), live, "0"],
        ["clean view, its canonical formed on the way", ms(cleans, "formed_ms"), "", kl("formed_kl")],
        ["clean view, its canonical stored", ms(cleans, "stored_ms"), "", kl("stored_kl")],
        ["undo of a clean view", ms(cleans, "stored_undo_ms"), "", kl("stored_undone_kl")],
    ]


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Rank correlation of two lists; 0 where one of them has a single value."""
    ranks = [_ranks(np.asarray(x, dtype=float)) for x in (a, b)]
    if min(rank.std() for rank in ranks) == 0:
        return 0.0
    return float(np.corrcoef(*ranks)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks, equal values sharing their mean."""
    return np.asarray([(np.sum(values < v) + np.sum(values <= v) - 1) / 2 for v in values])


def spread(value: tuple[float, float, float], digits: int) -> str:
    middle, low, high = (f"{v:.{digits}f}" for v in value)
    return f"{middle} [{low}, {high}]"
