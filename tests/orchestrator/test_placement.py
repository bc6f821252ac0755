"""Placement moves order-free messages among themselves, to where they are worth most, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from agentkv_orchestrator.diff import Wanted
from agentkv_orchestrator.placement import arranged
from agentkv_orchestrator.planner import make_plan
from agentkv_orchestrator.policy import Policy
from agentkv_orchestrator.simulate import Options, simulate
from agentkv_orchestrator.traces import generate
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.orchestrator.fake_machine import Session
from tests.strategies import policies


def asked(session: Session, *said: str) -> list[Wanted]:
    """Wanted chunks from names: "a" has its place, "*a" is order-free, "a+b" one message; live ones go on."""
    live = {w.chunk.id: w for w in session.wanted}
    found: list[Wanted] = []
    for number, message in enumerate(said):
        free = number if message.startswith("*") else None
        for name in message.lstrip("*").split("+"):
            known = live.get(name) or session.place(name, 40)
            found.append(known.model_copy(update={"order_free": free}))
    return found


def placed(session: Session, wanted: Sequence[Wanted], policy: str | Policy = "balanced") -> list[Wanted]:
    held, rows = session.machine.store.residency(), session.max_rows
    given = (held, session.costs, Policy.parse(policy), session.frame, rows)
    return arranged(session.graph, wanted, *given)[1]


def names(wanted: Sequence[Wanted]) -> str:
    return " ".join(w.chunk.id for w in wanted)


def test_what_stands_in_front_stays_in_front() -> None:
    session = Session()
    session.go(asked(session, "s", "a", "b", "c", "q"))
    wanted = asked(session, "s", "*d", "*c", "*b", "*a", "r")
    assert names(placed(session, wanted, Policy(kl_budget=0))) == "s a b c d r"


def test_a_stored_context_is_followed() -> None:
    """c was computed behind s and a, and left; the order that finds it again is taken."""
    session = Session()
    session.go(asked(session, "s", "a", "c", "q"))
    session.go(asked(session, "s", "q2"))
    wanted = asked(session, "s", "*d", "*c", "*a", "r")
    assert names(placed(session, wanted, Policy(kl_budget=0))) == "s a c d r"


def test_the_most_often_met_goes_first_where_nothing_is_known() -> None:
    session = Session()
    for pair in (("a", "b"), ("a", "c"), ("a", "d")):
        session.go(asked(session, "s", *pair, "q" + pair[1]))
    session.go(asked(session, "t", "q"))
    wanted = asked(session, "t", "*d", "*c", "*a", "r")
    assert names(placed(session, wanted, Policy(kl_budget=0))).startswith("t a")


def test_a_pinned_message_and_one_whose_place_was_chosen_divide_a_run() -> None:
    session = Session()
    session.go(asked(session, "s", "a", "b"))
    wanted = asked(session, "s", "*b", "note", "*a")
    assert placed(session, wanted) == wanted
    wanted = asked(session, "s", "*b", "*x", "*a")
    wanted[2] = wanted[2].model_copy(update={"pinned": True})
    assert placed(session, wanted) == wanted


def test_the_chunks_of_a_message_stay_together() -> None:
    session = Session()
    session.go(asked(session, "s", "a", "b", "c", "d"))
    assert names(placed(session, asked(session, "s", "*c+d", "*a+b"))) == "s a b c d"


def test_an_unchanged_window_is_left_alone() -> None:
    session = Session()
    session.go(asked(session, "s", "b", "a", "q"))
    wanted = asked(session, "s", "*b", "*a", "q")
    assert placed(session, wanted) == wanted


edits = st.lists(
    st.lists(
        st.sampled_from(["*a", "*b", "*c", "*d+e", "*f", "x", "y", "p"]), min_size=1, max_size=7, unique=True
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=60, deadline=None)
@given(windows=edits, policy=policies)
def test_nothing_leaves_its_run_and_no_plan_gets_slower(windows: list[list[str]], policy: Policy) -> None:
    session = Session(max_rows=4096)
    for said in windows:
        wanted = asked(session, "s", *said)
        wanted = [w.model_copy(update={"pinned": w.chunk.id == "p"}) for w in wanted]
        found = placed(session, wanted, policy)
        assert sorted(w.uid for w in found) == sorted(w.uid for w in wanted)
        fixed = [i for i, w in enumerate(wanted) if w.order_free is None]
        assert all(found[i] == wanted[i] for i in fixed)
        for first, stop in zip([-1, *fixed], [*fixed, len(wanted)], strict=True):
            assert {w.uid for w in found[first + 1 : stop]} == {w.uid for w in wanted[first + 1 : stop]}
        assert "d" not in names(found).split() or "d e" in names(found)
        assert session.plan(found, policy).predicted_ms <= session.plan(wanted, policy).predicted_ms + 1e-6
        session.go(found, policy)


@pytest.mark.parametrize("budget", [0.0, 0.01, 0.05])
def test_a_retrieved_set_that_is_ranked_anew_costs_less(budget: float) -> None:
    """The same KL budget, and at least 30 % less time to compute and form patches than in arrival order."""
    trace = generate("rerank", 60, seed=3)
    arms = {}
    for place in (False, True):
        (arm,) = simulate(trace, Options(place=place, kl_budget=budget), ["agentkv balanced"]).arms
        arms[place] = arm
        assert arm.kl_max <= budget + 1e-6
    assert arms[True].ms + arms[True].idle_ms <= 0.7 * (arms[False].ms + arms[False].idle_ms)


def test_a_plan_for_no_window_is_no_placement() -> None:
    session = Session()
    assert placed(session, []) == []
    assert (
        make_plan(
            session.graph, [], session.machine.store.residency(), session.costs, Policy(), session.frame, 64
        ).ops
        == ()
    )
