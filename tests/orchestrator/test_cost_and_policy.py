"""Calibration files and policies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from agentkv_orchestrator.cost import CostTable, Time
from agentkv_orchestrator.diff import Change
from agentkv_orchestrator.errors import PlanError, PolicyError
from agentkv_orchestrator.policy import Policy

from tests.strategies import COSTS, chunk


def change(**what: object) -> Change:
    return Change(**{"uid": 1, "chunk": chunk("a", 10), "kind": "survivor", **what})


def test_time_is_affine_and_a_token_attends_half_of_its_own_chunk() -> None:
    time = Time(base=1, per_token=2, per_token_row=3)
    assert time.of(10, 100) == 1 + 20 + 3 * 10 * 105
    assert Time(per_token=2).of(10) == 20


def test_the_shipped_table_reproduces_the_windows_it_was_measured_on() -> None:
    """Windows of five documents: each stale one weighs as it did there."""
    costs = CostTable.shipped()
    one, two = costs.kl.slide
    (hole,), (inserted,) = costs.kl.hole, costs.kl.inserted
    cases = [
        (change(lost=1, lost_tokens=256), 1024, 1.0, one.kl),
        (change(lost=2, lost_tokens=512), 768, 1.0, two.kl),
        (change(lost=1, lost_tokens=256, hole=True), 1024, hole.affected, hole.kl),
        (change(gained=1, gained_tokens=256), 1280, inserted.affected, inserted.kl),
        (change(reordered=True), 1280, 1.0, costs.kl.permuted),
    ]
    assert 0 < one.kl < two.kl < costs.kl.canonical
    for what, window, affected, measured in cases:
        assert costs.stale(what, window) * affected == pytest.approx(measured)
    assert "SmolLM2" in costs.model
    assert costs.note
    assert costs.hardware


def test_staleness_grows_from_nothing_to_the_canonical() -> None:
    shares = [COSTS.stale(change(lost=1, lost_tokens=n), 1000 - n) for n in range(0, 1000, 50)]
    assert shares[0] == 0
    assert shares == sorted(shares)
    assert COSTS.stale(change(lost=1, lost_tokens=10**9), 1) == pytest.approx(COSTS.kl.canonical)


def test_a_table_round_trips_and_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    file = tmp_path / "table.json"
    file.write_text(COSTS.model_dump_json())
    assert CostTable.load(file) == COSTS
    data = json.loads(file.read_text())
    for path, message in ((("colour",), "colour"), (("ms", "rotat"), "rotat"), (("kl", "slid"), "slid")):
        wrong = json.loads(json.dumps(data))
        target = wrong
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = {}
        file.write_text(json.dumps(wrong))
        with pytest.raises(PlanError, match=message):
            CostTable.load(file)


def test_an_op_without_a_time_is_an_error() -> None:
    with pytest.raises(PlanError, match="no time for load"):
        COSTS.model_copy(update={"ms": {"rotate": Time()}}).time("load", 1)


def test_policies_parse_by_name() -> None:
    assert Policy.parse("fast").name == "fast"
    custom = Policy(name="balanced", kl_budget=0.2)
    assert Policy.parse(custom) is custom
    assert (Policy.parse("exact").allowance, custom.allowance) == (0, 0.2)
    with pytest.raises(PolicyError, match="'quick', expected one of exact, balanced, fast"):
        Policy.parse("quick")
