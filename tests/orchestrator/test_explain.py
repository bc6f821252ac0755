"""Plans in words and pictures."""

from __future__ import annotations

import json

import pytest
from agentkv_orchestrator.errors import PlanError
from agentkv_orchestrator.explain import explain
from agentkv_orchestrator.plan import Plan
from agentkv_orchestrator.policy import Policy

from tests.orchestrator.fake_machine import Session


@pytest.fixture
def plan() -> Plan:
    """[head a b c]: a leaves, d comes."""
    session = Session()
    session.go([session.place(name, size) for name, size in (("head", 5), ("a", 20), ("b", 20), ("c", 20))])
    head, _, b, c = session.wanted
    return session.plan([head, b, c, session.place("d", 20)])


def test_text_names_every_op_with_its_rows_and_reason(plan: Plan) -> None:
    text = explain(plan)
    head, *lines = text.splitlines()
    assert head.startswith("balanced: 40 reused, 5 rotated, 20 recomputed;")
    assert head.endswith("window starts at row 20")
    for op in plan.ops:
        line = next(x for x in lines if x.startswith(f"  {op.op} ") and f" {op.chunk}#{op.uid} " in x)
        assert line.endswith(op.reason)
        for other in op.alternatives:
            assert any(other.name in x and other.why_not in x for x in lines)
    assert "rows 0→20+5" in text
    assert len(lines) == len(plan.ops) + sum(len(op.alternatives) for op in plan.ops)


def test_json_is_the_plan(plan: Plan) -> None:
    assert Plan.from_json(explain(plan, "json")) == plan
    assert json.loads(explain(plan, "json"))["ops"][0]["op"] == "stash"


def test_mermaid_draws_the_new_window_in_order(plan: Plan) -> None:
    lines = explain(plan, "mermaid").splitlines()
    assert lines[0] == "flowchart LR"
    arrows = [line.strip() for line in lines if "-->" in line]
    assert arrows == ["u1 --> u3", "u3 --> u4", "u4 --> u5"]
    styles = {line.strip().partition("[")[0]: line.rpartition(":::")[2] for line in lines if ":::" in line}
    assert styles == {"u1": "moved", "u3": "reused", "u4": "reused", "u5": "computed", "u2(": "gone"}
    defined = {line.split()[1] for line in lines if "classDef" in line}
    assert set(styles.values()) <= defined


def test_a_fast_plan_says_when_it_is_over_the_budget(plan: Plan) -> None:
    session = Session()
    session.machine.store.canonical |= {"x", "y"}
    over = session.plan([session.place("x", 5), session.place("y", 5)], Policy(name="fast"))
    assert over.over_budget
    assert "OVER BUDGET" in explain(over)
    assert "stored" in explain(over, "mermaid")
    assert "OVER BUDGET" not in explain(plan)


def test_idle_work_and_nothing_at_all_can_be_explained() -> None:
    session = Session()
    session.go([session.place(name, 10) for name in "ab"])
    session.go(session.wanted[:1])
    text = explain(session.settle())
    assert "form_canonical  b " in text
    assert "form_patch      b " in text
    assert "no tokens" in explain(Session().plan([]))


def test_an_unknown_format_is_refused(plan: Plan) -> None:
    with pytest.raises(PlanError, match="text, json or mermaid"):
        explain(plan, "svg")  # type: ignore[arg-type]
