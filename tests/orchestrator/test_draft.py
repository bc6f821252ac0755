"""A plan before it is written: what it will predict, and that writing it changes nothing."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
from agentkv_orchestrator.cost import CostTable
from agentkv_orchestrator.placement import arranged
from agentkv_orchestrator.plan import Keep
from agentkv_orchestrator.planner import Draft, draft, make_plan
from agentkv_orchestrator.policy import Policy
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.orchestrator.fake_machine import Session
from tests.orchestrator.test_random_edits import asked, edited
from tests.strategies import COSTS, MENDING, edits, policies


def given_to_plans(session: Session, policy: Policy) -> tuple:
    """What plans are made with besides the windows."""
    held = session.machine.store.residency()
    return held, session.costs, policy, session.frame, session.max_rows


def drafted(session: Session, wanted: list, policy: Policy) -> Draft:
    return draft(session.graph, wanted, *given_to_plans(session, policy))


@settings(max_examples=150, deadline=None)
@given(edits, policies, st.sampled_from([COSTS, MENDING, CostTable.shipped()]))
def test_its_price_is_what_the_written_plan_predicts(script: list, policy: Policy, costs: CostTable) -> None:
    session = Session(max_rows=300)
    session.costs = costs
    for wanted in asked(session, script):
        found = drafted(session, wanted, policy)
        plan = session.go(wanted, policy)
        assert found.ms == plan.predicted_ms
        assert found.plan() == plan


@settings(max_examples=60, deadline=None)
@given(edits, policies, st.permutations(range(4)))
def test_what_placement_drafted_is_the_plan_of_its_order(script: list, policy: Policy, order: list) -> None:
    session = Session(max_rows=600)
    for edit, which, where in script:
        wanted = edited(session, edit, which, where)
        if edit != "settle" and sum(w.chunk.length for w in wanted) <= 300:
            session.go(wanted, policy)
    free = [session.place(f"doc{i}", 20 + 7 * i).model_copy(update={"order_free": i}) for i in order]
    others = given_to_plans(session, policy)
    plan, wanted = arranged(session.graph, [*session.wanted, *free], *others)
    assert plan == make_plan(session.graph, wanted, *others)
    assert plan.predicted_ms <= drafted(session, [*session.wanted, *free], policy).ms


def test_an_op_is_made_of_its_fields_by_name_and_stays_as_it_is() -> None:
    op = Keep(uid=1, chunk="a", tokens=3, reason="stands", row=5, position=4)
    assert (op.op, op.ms, op.alternatives, op.position) == ("keep", 0.0, (), 4)
    with pytest.raises(FrozenInstanceError):
        op.row = 6
    with pytest.raises(TypeError, match="row"):
        Keep(uid=1, chunk="a", tokens=3, reason="stands", position=4)
    with pytest.raises(TypeError, match="rows"):
        Keep(uid=1, chunk="a", tokens=3, reason="stands", row=5, position=4, rows=2)
