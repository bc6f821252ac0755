"""Random edit sequences on a machine that moves integers: the rows must hold whatever was asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from agentkv_orchestrator.cost import CostTable
from agentkv_orchestrator.plan import Keep, Plan, Prefill
from agentkv_orchestrator.policy import Policy
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.orchestrator.fake_machine import Cell, Machine, Session, canonical, computed
from tests.strategies import COSTS, MENDING, chunk_lengths, edits, policies, seeds

FAST = Policy(name="fast")
lengths = st.lists(chunk_lengths, min_size=1, max_size=7)


def edited(session: Session, edit: str, which: int, where: int) -> list:
    """The window after an edit, with the numbers taken modulo what there is."""
    wanted = list(session.wanted)
    if edit == "append" or not wanted:
        length = 1 + which % 40
        span = 1 + where % length if where % 3 == 0 else None  # every third is an image
        return [*wanted, session.place(f"c{session._uid}", length, span)]
    at = which % len(wanted)
    if edit == "again":
        wanted.insert(where % (len(wanted) + 1), session.place_chunk(wanted[at].chunk))
    elif edit == "evict":
        del wanted[at : at + 1 + where % 2]
    elif edit == "recall":
        stored = sorted(session.machine.store.residency().known())
        known = {c.chunk: c.index for c in session.machine.rows.values()}
        gone = [name for name in stored if name not in known and name in session.seen]
        if gone:
            back = session.place_chunk(session.seen[gone[which % len(gone)]])
            wanted.insert(where % (len(wanted) + 1), back)
    elif edit == "move":
        wanted.insert(where % len(wanted), wanted.pop(at))
    elif edit == "clean":
        wanted[at] = wanted[at].model_copy(update={"clean": not wanted[at].clean})
    return wanted


def asked(session: Session, script: list[tuple[str, int, int]]) -> Iterator[list]:
    """The windows that a script asks for, one after another, as far as there are rows for them."""
    for edit, which, where in script:
        if edit == "settle":
            session.settle()
            continue
        wanted = edited(session, edit, which, where)
        if sum(w.chunk.length for w in wanted) <= session.max_rows:
            yield wanted


def play(session: Session, script: list[tuple[str, int, int]], policy: Policy) -> list[Plan]:
    return [session.go(wanted, policy) for wanted in asked(session, script)]


@settings(max_examples=150, deadline=None)
@given(edits, policies, st.sampled_from([COSTS, MENDING]))
def test_the_rows_hold_what_was_wanted(script: list, policy: Policy, costs: CostTable) -> None:
    """Session.go compares rows, positions and antecedents after each edit, in a buffer that has to grow."""
    session = Session(capacity=48, max_rows=300)
    session.costs = costs
    for plan in play(session, script, policy):
        assert not plan.over_budget or policy.name == "fast"
        assert Plan.from_json(plan.to_json()) == plan


@settings(max_examples=60, deadline=None)
@given(edits, policies, edits)
def test_equal_inputs_give_equal_plans(script: list, policy: Policy, more: list) -> None:
    session, twin = Session(max_rows=300), Session(max_rows=300)
    assert play(session, script, policy) == play(twin, script, policy)
    assert session.plan(session.wanted, policy) == session.plan(session.wanted, policy)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(policies, edits), min_size=1, max_size=3), edits)
def test_exact_gives_the_bits_of_a_prefix_cache(history: list, script: list) -> None:
    """Whatever was done before under other policies, an exact plan leaves what a fresh prefill would."""
    session = Session(max_rows=400)
    session.costs = MENDING
    for policy, earlier in history:
        play(session, earlier, policy)
    play(session, script, Policy(name="exact"))
    session.go(session.wanted, "exact")
    fresh: list[Cell] = []
    for w in session.wanted:
        row = session.frame.start + len(fresh)
        position = session.graph.get(w.uid).position
        found = [session.machine.rows[row + i] for i in range(w.chunk.length)]
        if w.clean:
            assert not found[0].seen
        else:
            assert found == computed(w.chunk.id, w.chunk.length, position, fresh)
        fresh += found


def test_a_clean_view_of_the_first_chunk_is_the_chunk() -> None:
    """Where it was computed there: what stands behind it stays what a prefix cache holds."""
    session = Session()
    session.go([session.place("a", 5)])
    (a,) = session.wanted
    b = session.place("b", 5)
    session.go([a.model_copy(update={"clean": True}), b])
    for policy in ("balanced", "exact"):
        again = session.go([a, b], policy)
        assert [op.op for op in again.ops] == ["keep", "keep"]
        assert again.predicted_kl == 0


def test_exact_does_not_take_a_canonical_for_a_computed_chunk() -> None:
    """At the front both have no antecedents, and still differ."""
    session = Session()
    session.go([session.place("a", 5)])
    plain = list(session.wanted)
    session.go([plain[0].model_copy(update={"clean": True})], "exact")
    back = session.go(plain, "exact")
    assert [op.op for op in back.ops] == ["prefill"]


def test_an_estimate_at_the_front_is_no_clean_view() -> None:
    """It has no antecedents either, and an error of its own."""
    session = Session()
    session.costs = MENDING
    session.go([session.place(name, 5) for name in "ab"])
    a, b = session.wanted
    clean, fast = b.model_copy(update={"clean": True}), Policy(name="fast", stash=False)
    session.go([clean, a], fast)
    ended = session.go([b, a], fast)
    assert [op.op for op in ended.ops if op.uid == b.uid] == ["place_canonical", "estimate_patch"]
    again = session.go([clean, a], fast)
    assert [op.op for op in again.ops if op.uid == b.uid] == ["place_canonical"]
    assert session.go([clean, a], "exact").predicted_kl == 0


def test_a_budget_counts_what_was_computed_behind_a_clean_view_that_ended() -> None:
    session = Session()
    session.go([session.place(name, 5) for name in "sa"])
    s, a = session.wanted
    b = session.place("b", 5)
    clean = [s, a.model_copy(update={"clean": True}), b]
    session.go(clean)
    assert {op.op for op in session.plan(clean).ops} == {"keep"}  # nothing ended
    again = session.go([s, a, b], Policy(kl_budget=0))
    assert [op.op for op in again.ops if op.uid == b.uid] == ["prefill"]
    assert session.graph.stale() == ()


def test_a_canonical_at_the_front_is_none_that_was_computed_there() -> None:
    """It was computed behind a sink that is missing: the same antecedents, none, and other KV."""
    session = Session()
    session.go([session.place("a", 5)])
    (a,) = session.wanted
    b = session.place("b", 5)
    session.go([a.model_copy(update={"clean": True})], "exact")
    session.go([])
    session.go([a.model_copy(update={"clean": True}), b])
    again = session.go([a, b], Policy(kl_budget=0))
    assert "keep" not in {op.op for op in again.ops}


def test_exact_sees_what_was_computed_behind_something_since_rewritten() -> None:
    session = Session()
    session.go([session.place(name, 5) for name in "sa"])
    s, a = session.wanted
    b = session.place("b", 5)
    session.go([s, a.model_copy(update={"clean": True}), b])
    again = session.go([s, a, b], Policy(name="fast", stash=False))
    assert [op.op for op in again.ops if op.uid == b.uid] == ["keep"]  # the ids in front are the same
    assert session.graph.stale() == (b.uid,)
    assert not session.graph.placements[2].verbatim
    assert [op.op for op in session.plan([s, a, b], "exact").ops if op.uid == b.uid][-1] == "prefill"


def test_what_left_its_context_is_not_verbatim() -> None:
    session = Session()
    session.go([session.place(name, 5) for name in "ab"])
    assert [p.verbatim for p in session.graph.placements] == [True, True]
    plan = session.go(session.wanted[1:])
    assert plan.ops[-1].op == "keep"
    assert not session.graph.placements[0].verbatim


@settings(max_examples=100, deadline=None)
@given(edits)
def test_an_exact_plan_is_a_kept_prefix_and_the_rest_computed(script: list) -> None:
    session = Session(max_rows=400)
    for plan in play(session, [e for e in script if e[0] != "clean"], Policy(name="exact", stash=False)):
        kinds = [type(op) for op in plan.ops if isinstance(op, Keep | Prefill)]
        assert kinds == sorted(kinds, key=[Keep, Prefill].index)
        assert plan.predicted_kl == 0


@settings(max_examples=60, deadline=None)
@given(lengths, st.data())
def test_evicting_and_bringing_back_restores_every_context(sizes: list[int], data: st.DataObject) -> None:
    session = Session()
    whole = [session.place(f"c{i}", n) for i, n in enumerate(sizes)]
    session.go(whole)
    session.go([w for w in whole if data.draw(st.booleans())], FAST)
    undo = session.go(whole, FAST)
    assert undo.tokens()["recomputed"] == 0
    assert undo.predicted_kl == 0
    assert session.graph.stale() == ()
    assert {cell.chunk for cell in session.machine.rows.values()} == {w.chunk.id for w in whole}


@settings(max_examples=60, deadline=None)
@given(lengths, st.randoms(use_true_random=False))
def test_a_permutation_and_its_inverse_restore_every_context(sizes: list[int], random: object) -> None:
    session = Session()
    whole = [session.place(f"c{i}", n) for i, n in enumerate(sizes)]
    session.go(whole)
    shuffled = list(whole)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    session.go(shuffled, FAST)
    undo = session.go(whole, FAST)
    assert undo.tokens()["recomputed"] == 0
    assert undo.predicted_kl == 0
    assert session.graph.stale() == ()


@settings(max_examples=40, deadline=None)
@given(lengths, seeds)
def test_nothing_to_do_is_a_plan_of_keeps(sizes: list[int], seed: int) -> None:
    session = Session()
    session.go([session.place(f"c{(i + seed) % 5}", 3) for i in range(len(sizes))])
    for policy in ("exact", "balanced", "fast"):
        plan = session.plan(session.wanted, policy)
        assert {op.op for op in plan.ops} <= {"keep"}
        assert plan.predicted_ms == 0


def test_the_machine_notices_a_row_that_was_not_turned() -> None:
    """The oracle itself: moved cells differ from computed ones, canonical ones from both."""
    here, there = computed("a", 1, 4, [])[0], computed("a", 1, 0, [])[0].turned(4)
    assert here.position == there.position
    assert len({here.bits, there.bits, canonical("a", 1, 4)[0].bits}) == 3
    machine, op = Machine(), Prefill(uid=1, chunk="a", tokens=1, reason="", row=0, position=0)
    machine._write(op, [here])
    with pytest.raises(AssertionError, match="written twice"):
        machine._write(op, [here])
