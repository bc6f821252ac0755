"""Calibration files and policies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
from agentkv_orchestrator.cost import Bytes, CostTable, Time, Timed
from agentkv_orchestrator.errors import PlanError, PolicyError
from agentkv_orchestrator.policy import Policy

from tests.strategies import COSTS


def test_time_is_affine_and_a_token_attends_half_of_its_own_chunk() -> None:
    time = Time(base=1, per_token=2, per_token_row=3)
    assert time.of(10, 100) == 1 + 20 + 3 * 10 * 105
    assert Time(per_token=2).of(10) == 20


def test_time_and_bytes_of_a_patch_grow_with_its_rank() -> None:
    time = Time(base=1, per_token=2, per_rank=0.5, per_token_rank=0.25)
    assert time.of(10, rank=8) == 1 + 20 + 4 + 20
    assert Bytes(per_token=3).of(10, 8) == 30
    table = COSTS.model_copy(update={"bytes": {"apply_patch": Bytes(per_rank=100, per_token_rank=2)}})
    assert table.moved("apply_patch", 40) == 32 * 180
    assert table.at_rank(8).moved("apply_patch", 40) == 8 * 180
    assert table.moved("apply_patch", 10) == 10 * 120  # no patch has more rank than tokens
    timed = COSTS.model_copy(update={"ms": {**COSTS.ms, "apply_patch": time}}).at_rank(8)
    assert timed.time("apply_patch", 10) == 45
    with pytest.raises(PlanError, match="no bytes for load"):
        table.moved("load", 1)


def test_the_shipped_table_says_what_it_is_and_how_good_it_is() -> None:
    costs = CostTable.shipped()
    assert "SmolLM2" in costs.model
    assert costs.note
    assert costs.hardware
    assert set(costs.ms) == set(costs.bytes) == set(get_args(Timed))
    assert costs.evaluation is not None
    assert costs.evaluation.model.coverage.high >= costs.kl.level  # not shown to be below
    others = costs.evaluation.others.values()
    assert costs.evaluation.model.rank_correlation.value > max(x.rank_correlation.value for x in others)


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
