"""What audits change: bounded, kept, never shared, and right in the long run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.corrections import LIMIT, NOTHING, Correction, Corrections
from agentkv.errors import BadCorrection
from tests.runtime import cases

LEVEL = 0.9
FRESH = Correction(tenant="", model="m", calibration="c")
kls = st.floats(0, 10, allow_nan=False)


def corrections(folder: Path | None, tenant: str = "a", model: str = "m", table: str = "c") -> Corrections:
    return Corrections(folder, tenant, model, table)


@given(st.lists(st.tuples(kls, kls), max_size=80))
def test_no_audits_take_it_out_of_its_bounds(audits: list[tuple[float, float]]) -> None:
    now = FRESH
    for expected, measured in audits:
        now = now.after(expected, measured, LEVEL)
        assert 1 / LIMIT - 1e-12 <= now.factor <= LIMIT + 1e-12
    assert now.audits == sum(expected >= NOTHING for expected, _ in audits)


@pytest.mark.parametrize("off", [1 / 3, 1.0, 3.0])
def test_a_bound_that_is_off_by_three_comes_to_hold_as_often_as_it_says(off: float) -> None:
    """Measured KL is log-normal around a table whose bound is `off` times what it should be."""
    draw, now, held = np.random.default_rng(0), FRESH, list[bool]()
    quantile = math.exp(1.2816)  # of a log-normal with σ = 1 at 0.9
    for _ in range(600):
        expected = 0.02 * off
        measured = 0.02 * float(np.exp(draw.normal())) / quantile
        held.append(measured <= expected * now.factor)
        now = now.after(expected, measured, LEVEL)
    assert abs(np.mean(held[200:]) - LEVEL) < 0.04
    assert abs(now.log_factor + math.log(off)) < 0.6
    assert abs(np.mean(held[:100]) - LEVEL) < 0.15  # and soon


def test_what_predicts_nothing_teaches_nothing() -> None:
    assert FRESH.after(0.0, 0.5, LEVEL) is FRESH
    assert FRESH.after(NOTHING / 2, 0.5, LEVEL) is FRESH


def test_it_is_the_same_after_a_restart_and_after_the_same_audits(tmp_path: Path) -> None:
    audits = [(0.02, 0.05), (0.04, 0.01), (0.03, 0.2)]
    first, second = corrections(tmp_path / "one"), corrections(tmp_path / "two")
    for predicted, measured in audits:
        assert first.heard(predicted, measured, LEVEL) == second.heard(predicted, measured, LEVEL)
    assert corrections(tmp_path / "one").current == first.current != corrections(None).current
    assert not [p for p in (tmp_path / "one").iterdir() if p.name.startswith(".agentkv")]


def test_a_prediction_counts_without_the_correction_it_was_made_with() -> None:
    held = corrections(None)
    factor = held.heard(0.01, 0.05, LEVEL).factor
    assert factor > 1
    assert held.heard(0.01 * factor, 0.01 * factor * 0.99, LEVEL).factor < factor


def test_processes_of_one_tenant_go_on_from_each_other(tmp_path: Path) -> None:
    one, two = corrections(tmp_path), corrections(tmp_path)
    one.heard(0.01, 0.05, LEVEL)
    assert two.heard(0.01, 0.05, LEVEL).audits == 2
    assert corrections(tmp_path).current.audits == 2


def test_tenants_models_and_calibrations_share_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "kept" / "here"
    corrections(folder, "a").heard(0.01, 0.05, LEVEL)
    for other in (("b",), ("../a",), ("",), ("a", "other"), ("a", "m", "other")):
        assert corrections(folder, *other).current.audits == 0
    corrections(folder, "../outside").heard(0.01, 0.05, LEVEL)
    assert {p.parent for p in tmp_path.rglob("*.json")} == {folder}
    assert corrections(folder, "a").current.audits == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-20],
        lambda text: "",
        lambda text: text.replace('"log_factor":', '"log_factor":9'),
        lambda text: text.replace('"tenant":"a"', '"tenant":"b"'),
        lambda text: text.replace('"model":"m"', '"model":"n"'),
        lambda text: text.replace('"version":1', '"version":7'),
        lambda text: json.dumps({**json.loads(text), "more": 1}),
    ],
)
def test_a_file_that_is_damaged_or_somebody_elses_is_refused_and_left(tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    held = corrections(tmp_path)
    held.heard(0.01, 0.05, LEVEL)
    (file,) = tmp_path.glob("*.json")
    text = damage(file.read_text())
    file.write_text(text)
    with pytest.raises(BadCorrection, match="expected what audits of this tenant left"):
        corrections(tmp_path)
    with pytest.raises(BadCorrection):
        held.heard(0.01, 0.05, LEVEL)
    assert file.read_text() == text


def test_a_folder_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadCorrection):
        corrections(tmp_path / "file")


def test_an_audit_corrects_the_plans_of_its_tenant_and_of_no_other(tmp_path: Path) -> None:
    def audited(tenant: str, audits: int) -> tuple[float, float]:
        with cases.engine(tenant=tenant, corrections=tmp_path) as engine:
            before = engine.costs.kl.bound
            window = engine.window(policy="fast")
            window.append(cases.words(20, seed=1), kind="document")
            gone = window.append(cases.words(20, seed=2), kind="document")
            window.append(cases.words(20, seed=3), kind="document")
            window.commit()
            window.evict(gone)
            window.append(cases.words(8, seed=4), kind="user")
            for _ in range(audits):
                found = window.audit(attribute=False, new_tokens=1)
                assert found.predicted > 0
                assert f"below {found.predicted:.4g}" in str(found)
            return before, engine.costs.kl.bound

    before, after = audited("a", 2)
    assert before != after
    assert audited("a", 0) == (after, after)
    assert audited("b", 0) == (before, before)


def test_a_clean_view_teaches_nothing() -> None:
    with cases.engine() as engine:
        window = engine.window(policy="fast")
        window.append(cases.words(20, seed=1), kind="document")
        shown = window.append(cases.words(20, seed=2), kind="document")
        window.commit()
        window.clean_view(shown)
        window.append(cases.words(8, seed=4), kind="user")
        window.audit(attribute=False, new_tokens=1)
        assert engine.corrections.current.audits == 0
