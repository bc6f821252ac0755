"""The disposability run: its gates, its figures on a tiny model, and its tables on made-up windows."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from bench.eval import agent_windows, branches, disposability, window_tables
from bench.eval.window_tables import spearman
from tests.runtime.cases import engine, ids


class Piece:
    """A document of random words."""

    def __init__(self, number: int) -> None:
        self.name, self.ids = f"p{number}", tuple(ids(24, seed=number).tolist())


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(agent_windows, "SYSTEM", "w20 w21 w22 w23 w24 w25")
    monkeypatch.setattr(agent_windows, "QUESTIONS", ("w30 w31", "w40 w41 w42"))
    with engine(dtype=torch.float32, chat=True) as built:
        yield agent_windows.opened(built, [Piece(n) for n in range(4)], 1)  # type: ignore[misc]


def test_every_document_gets_a_truth_and_a_verdict(case: Any) -> None:
    found = disposability.measured(case)
    assert found["about"] == 3
    assert len(found["documents"]) == 4
    for row in found["documents"]:
        assert row["truth"] > 0
        assert {"rows not attended", "dependents clean", "attention", "truth", "truth_ms"} == set(row)
        assert all(math.isfinite(row[test]["kl"]) for test in ("rows not attended", "dependents clean"))
        assert row["attention"]["kl"] > 0
    assert len(case.window.content.live()) == 6  # nothing has left


def test_a_window_that_is_off_is_not_measured(case: Any) -> None:
    case.window.policy = case.window.policy.model_copy(update={"kl_budget": 10.0})
    case.window.clean_view(case.documents[3])
    case.window.commit()
    with pytest.raises(SystemExit, match="nothing measured"):
        disposability.measured(case)


def test_a_clean_view_is_off_and_its_undo_is_not(case: Any) -> None:
    found = branches.measured(case)
    clean = found["clean"]
    assert clean["formed_kl"] == pytest.approx(clean["stored_kl"], rel=1e-3)
    assert clean["stored_kl"] > 1e-6 > clean["stored_undone_kl"]
    assert found["fork"]["live_bytes"] == case.window.kv.nbytes
    assert case.answered(case.window) < 1e-6


def made_up(truths: list[float], said: list[float]) -> dict[str, Any]:
    rows = [
        {
            "truth": t,
            "truth_ms": 5.0,
            "rows not attended": {"kl": s, "kl_first": s, "kl_question": 1 - s, "agreement": 1.0, "ms": 1.0},
            "dependents clean": {"kl": s, "kl_first": s, "kl_question": s, "agreement": 1.0, "ms": 2.0},
            "attention": {"kl": s, "ms": 0.5},
        }
        for t, s in zip(truths, said, strict=True)
    ]
    return {"documents": rows}


def test_the_table_says_who_orders_like_the_truth() -> None:
    over = 1.5 * window_tables.THRESHOLD
    windows = [made_up([0.01, 0.2, 0.3], [0.0, 0.02, 0.9]), made_up([0.3, 0.01, 0.02], [0.9, over, 0.2])]
    header, rows = window_tables.disposable(windows)
    by = {row[0]: row for row in rows}
    assert header[0].endswith("(n = 2 windows, 6 documents)")
    ours = by["its rows are not attended: the answer"]
    assert ours[1].startswith("1.00 ")
    assert ours[2].startswith("0.010 ")
    assert ours[3] == "1 of 2"  # 0.2 under a verdict of 0.02
    assert by["the truth: a re-prefill without it"][2].startswith("0.010 ")
    assert by["age, the oldest first"][2].startswith("0.155 ")
    assert by["chance"][2].startswith("0.140 ")


def test_rank_correlation() -> None:
    assert spearman([1, 2, 3], [10, 20, 90]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert spearman([1, 1, 1], [3, 2, 1]) == 0
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9487, abs=1e-4)
