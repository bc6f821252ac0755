"""What was off in front when a chunk was computed stays with it: in the window, in the store and back."""

from __future__ import annotations

from agentkv_orchestrator.chunks import context_key
from agentkv_orchestrator.diff import Wanted
from agentkv_orchestrator.planner import after, make_plan
from agentkv_orchestrator.policy import Policy
from agentkv_orchestrator.residency import FrozenResidency, Resident
from agentkv_orchestrator.window import Frame, WindowGraph

from tests.orchestrator.fake_machine import Session
from tests.strategies import COSTS, MENDING, chunk

FAST = Policy(name="fast")


def stale_window() -> Session:
    """b carries a, which has left; c was computed behind it."""
    session = Session()
    a, b = session.place("a", 40), session.place("b", 40)
    session.go([a, b])
    session.go([b], FAST)
    session.go([b, session.place("c", 20)], FAST)
    return session


def test_a_chunk_computed_behind_stale_rows_inherits_their_error() -> None:
    session = stale_window()
    b, c = session.graph.placements
    assert b.hearsay == 0
    plan = session.plan(session.wanted)
    stale = next(op.kl for op in plan.ops if op.uid == b.uid)
    assert c.hearsay > 0
    assert plan.predicted_kl > stale  # c's share comes on top of what b still carries


def test_computing_the_front_again_leaves_the_hearsay_of_what_stays() -> None:
    session = stale_window()
    plan = session.plan(session.wanted, Policy(kl_budget=0.0))
    assert [op.op for op in plan.ops if op.op != "stash"] == ["prefill", "prefill"]


def loaded(hearsay: float, budget: float) -> set[str]:
    """Ops that bring c back behind b, its KV being stored from second hand."""
    key = context_key(["b"])
    held = FrozenResidency({"c": Resident(tokens=20, conditioned=frozenset({key}), hearsay={key: hearsay})})
    wanted = [Wanted(uid=1, chunk=chunk("b", 40)), Wanted(uid=2, chunk=chunk("c", 20))]
    frame, graph = Frame(start=0, capacity=256), WindowGraph()
    first = make_plan(graph, wanted[:1], held, COSTS, Policy(), frame, 256)
    graph = after(graph, first, wanted[:1], held)
    plan = make_plan(graph, wanted, held, COSTS, Policy(kl_budget=budget), frame, 256)
    back = after(graph, plan, wanted, held).placements[1]
    names = {op.op for op in plan.ops if op.uid == 2}
    assert back.hearsay == (hearsay if "load" in names else 0.0)
    return names


def test_stored_hearsay_is_charged_by_the_share_of_the_window() -> None:
    assert loaded(hearsay=0.0, budget=0.0) == {"load"}
    assert loaded(hearsay=0.03, budget=0.02) == {"load"}  # 20 of 60 tokens
    assert loaded(hearsay=0.03, budget=0.005) == {"prefill"}


def test_a_better_copy_replaces_one_of_worse_hearsay() -> None:
    session = Session()
    a, b = session.place("a", 40), session.place("b", 40)
    session.go([a, b])
    key = context_key(["a"])
    for hearsay, stashed in ((0.01, True), (0.0, False)):
        held = FrozenResidency(
            {"b": Resident(tokens=40, conditioned=frozenset({key}), hearsay={key: hearsay})}
        )
        plan = make_plan(session.graph, [a], held, COSTS, Policy(), session.frame, 1024)
        assert ("stash" in {op.op for op in plan.ops if op.uid == b.uid}) is stashed


def test_a_repaired_canonical_is_no_clean_view() -> None:
    """Its rows have seen what stood in front, whatever its books say of the others."""
    session = Session()
    session.costs = MENDING.model_copy(update={"kl": MENDING.kl.model_copy(update={"estimated": None})})
    session.go([session.place("system", 100), session.place("task", 100)])
    session.hold_canonical("note")
    note, question = session.place("note", 100), session.place("question", 20)
    plan = session.go([*session.wanted, note, question], Policy(kl_budget=0.03))
    assert [op.op for op in plan.ops if op.uid == note.uid] == ["place_canonical", "repair"]
    assert session.graph.get(note.uid).mended
    clean = [w.model_copy(update={"clean": w is note}) for w in session.wanted]
    for policy in (Policy(name="exact"), Policy()):
        ops = session.plan(clean, policy).ops
        assert [op.op for op in ops if op.uid == note.uid] == ["place_canonical"]
