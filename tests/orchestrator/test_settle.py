"""Idle work on a window that is off: most KL a millisecond first, and antecedents before dependents."""

from __future__ import annotations

from agentkv_orchestrator.plan import Keep, Prefill
from agentkv_orchestrator.policy import Policy
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.orchestrator.fake_machine import Session
from tests.orchestrator.test_random_edits import play
from tests.strategies import edits

FAST = Policy(name="fast")


def off() -> Session:
    """s b c d e, of which b c d carry a hole and e was computed behind them."""
    session = Session()
    session.go([session.place(name, 40) for name in "sabcd"])
    s, _, *rest = session.wanted
    session.go([s, *rest], FAST)
    session.go([*session.wanted, session.place("e", 40)], FAST)
    return session


def carried(session: Session) -> float:
    """KL of the window as it stands."""
    return session.plan(session.wanted, Policy(kl_budget=float("inf"))).predicted_kl


def test_with_time_for_everything_nothing_is_off_any_more() -> None:
    session = off()
    assert carried(session) > 0
    plan = session.refresh(float("inf"))
    assert [op.op for op in plan.ops if isinstance(op, Keep)] == ["keep"]  # s
    assert carried(session) == 0
    assert session.refresh(float("inf")) is None


def test_with_a_little_time_the_front_goes_first_and_the_rest_later() -> None:
    """A dependent that is computed behind stale KV inherits it, so that buys little."""
    session = off()
    left, computed = [carried(session)], []
    for _ in range(20):
        plan = session.refresh(60.0)
        if plan is None:
            break
        assert plan.predicted_ms <= 60.0
        computed.append([op.chunk for op in plan.ops if isinstance(op, Prefill)])
        left.append(carried(session))
    assert computed == [["b"], ["c"], ["d"], ["e"]]
    assert left == sorted(left, reverse=True)
    assert left[-1] == 0


def test_without_time_nothing_happens() -> None:
    session = off()
    before = session.graph
    assert session.refresh(0.0) is None
    assert session.graph is before


@settings(max_examples=100, deadline=None)
@given(edits, st.floats(0, 200))
def test_every_refresh_leaves_less(script: list, ms: float) -> None:
    session = Session(max_rows=300)
    play(session, script, FAST)
    before = carried(session)
    plan = session.refresh(ms)
    if plan is None:
        return
    assert plan.predicted_ms <= ms
    assert plan.predicted_kl < before
    assert carried(session) < before
