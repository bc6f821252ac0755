"""The choice inside a KL budget, against every choice there is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product

import numpy as np
import pytest
from agentkv_orchestrator.choose import choose
from agentkv_orchestrator.cost import Time
from agentkv_orchestrator.knapsack import steps_of
from agentkv_orchestrator.options import Options, Starts, over
from agentkv_orchestrator.plan import ApplyOrbit, Keep, Load, Prefill, Repair, Rotate, Stash
from agentkv_orchestrator.policy import Policy
from agentkv_orchestrator.site import Candidate, Step
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.orchestrator.fake_machine import Session
from tests.strategies import COSTS

figures = st.integers(0, 20).map(float)
chunks_options = st.lists(
    st.tuples(st.lists(st.tuples(figures, figures), max_size=4), figures), min_size=1, max_size=4
)
"""For each chunk: (ms, KL) of what may be done, and the ms of a prefill, which has none."""


def option(ms: float, kl: float, kind: type = Keep) -> Candidate:
    return Candidate(
        (Step(kind, "", ms, kl, {}),), ms, kl, ms, True, kind is Prefill, kind is Repair, kind.__name__
    )


@settings(max_examples=300, deadline=None)
@given(chunks_options, st.integers(0, 60), figures, figures)
def test_balanced_is_the_best(shapes: list, budget: int, start: float, mend: float) -> None:
    """Near it, that is: a choice within a hundredth of the bound is not improved."""
    options = [
        [
            *(option(ms, kl, Repair if i == 3 else Keep) for i, (ms, kl) in enumerate(rest)),
            option(prefill, 0, Prefill),
        ]
        for rest, prefill in shapes
    ]
    chosen = choose([], options, Policy(kl_budget=budget), Starts(start, mend), np.zeros(len(options)))
    kl = sum(c.kl for c in chosen)
    assert kl <= budget

    def total(combination: Sequence[Candidate]) -> float:
        once = start * any(c.computes for c in combination) + mend * any(c.mends for c in combination)
        return sum(c.ms for c in combination) + once

    feasible = [combination for combination in product(*options) if sum(c.kl for c in combination) <= budget]
    assert total(chosen) <= 1.01 * min(map(total, feasible))
    # Nothing can be handed back: any cheaper candidate for one chunk would break the budget.
    for mine, candidates in zip(chosen, options, strict=True):
        assert all(
            c.ms >= mine.ms or c.computes or c.mends or over(kl - mine.kl + c.kl, budget) for c in candidates
        )


shapes = st.lists(st.tuples(figures, figures), min_size=1, max_size=8)


@given(st.lists(shapes, min_size=1, max_size=4))
def test_a_hull_buys_less_and_less_and_nothing_lies_below_it(shapes: list) -> None:
    options = Options.of([[option(ms, kl) for ms, kl in shape] for shape in shapes])
    steps = steps_of(options, options.cheapest())
    rates = (steps.paid / steps.saved).tolist()
    assert rates == pytest.approx(sorted(rates))
    for i, shape in enumerate(shapes):
        hull = [min(shape), *(shape[at] for at in steps.option[steps.row == i])]
        slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(hull)]
        assert slopes == sorted(set(slopes))
        assert all(slope < 0 for slope in slopes)
        assert hull[-1][1] == min(kl for _, kl in shape)
        for (ms, kl), (a, b) in product(shape, pairwise(hull)):
            if a[0] <= ms <= b[0]:
                assert kl >= a[1] + (ms - a[0]) * (b[1] - a[1]) / (b[0] - a[0]) - 1e-9


@given(chunks_options)
def test_fast_takes_the_cheapest_of_each(shapes: list) -> None:
    options = [[*(option(ms, kl) for ms, kl in rest), option(prefill, 0)] for rest, prefill in shapes]
    chosen = choose([], options, Policy(name="fast"), Starts(0.0), np.zeros(len(options)))
    assert [c.ms for c in chosen] == [min(c.ms for c in candidates) for candidates in options]


@pytest.fixture
def session() -> Session:
    """s a b c d, 10 tokens each, computed in one go."""
    session = Session()
    session.go([session.place(name, 10) for name in "sabcd"])
    return session


def test_fast_computes_nothing_that_is_held(session: Session) -> None:
    """Even where computing is the faster way."""
    s, a, b, c, d = session.wanted
    session.go([s, b, c, d], "fast")
    session.costs = COSTS.model_copy(update={"ms": {**COSTS.ms, "prefill": Time()}})
    for name in ("fast", "balanced"):
        plan = session.plan([s, a, d, c, b], name)
        assert any(isinstance(op, Prefill) for op in plan.ops) == (name == "balanced")


def test_a_tight_budget_buys_the_best_kl_per_ms_first(session: Session) -> None:
    s, a, b, c, d = session.wanted
    order = [s, b, a, d, c]
    loose = session.plan(order, Policy(kl_budget=1))
    assert {op.op for op in loose.ops} <= {"keep", "rotate"}
    for w in order[3:]:
        session.learn_orbit(w.chunk.id, [x.chunk.id for x in order[: order.index(w)]])
    tight = session.plan(order, Policy(kl_budget=loose.predicted_kl * 0.7))
    assert any(isinstance(op, ApplyOrbit) for op in tight.ops)
    assert tight.predicted_kl <= loose.predicted_kl * 0.7
    none = session.plan(order, Policy(kl_budget=0))
    assert none.predicted_kl == 0
    assert sum(isinstance(op, Prefill) for op in none.ops) == 4


def test_every_chunk_answers_for_its_own_share(session: Session) -> None:
    s, _, b, c, d = session.wanted
    slid = session.plan([s, b, c, d], "fast")
    hole = COSTS.kl.hole.scale / 4  # of the window
    assert [op.kl for op in slid.ops if isinstance(op, Keep)] == pytest.approx(
        [0.0, *(round(hole * lost, 6) for lost in (1 / 2, 1 / 3, 1 / 4))][-3:]
    )
    session.machine.store.canonical.add("x")
    x = session.place("x", 10)
    placed = session.go([*session.wanted, x], "fast")
    assert placed.predicted_kl == pytest.approx(COSTS.kl.canonical / 6)
    assert session.plan(session.wanted, "fast").predicted_kl == pytest.approx(COSTS.kl.canonical / 6)
    session.learn_orbit("x", [w.chunk.id for w in session.wanted[:-1]])
    plan = session.plan(session.wanted, Policy(kl_budget=0.02))
    assert plan.predicted_kl == pytest.approx(COSTS.kl.orbit / 6, abs=1e-6)


def test_every_choice_says_what_else_there_was(session: Session) -> None:
    s, a, b, c, d = session.wanted
    session.go([s, b, c, d], "fast")
    plan = session.plan([s, a, b, c, d])
    load = next(op for op in plan.ops if isinstance(op, Load))
    assert [(x.name, x.why_not) for x in load.alternatives] == [("prefill", "neither faster nor closer")]
    plan = session.plan([s, c, d])
    stale = next(op for op in plan.ops if isinstance(op, Keep | Rotate) and op.chunk == "d")
    assert stale.alternatives[0].name == "prefill"
    assert "the budget holds without it" in stale.alternatives[0].why_not
    exact = session.plan([s, c, d], "exact")
    assert {x.why_not for op in exact.ops for x in op.alternatives} == {
        "not bit for bit what a prefix cache gives"
    }
    tight = session.plan([s, c, d], Policy(kl_budget=0))
    assert any("does not fit the budget" in x.why_not for op in tight.ops for x in op.alternatives)


def test_what_is_lost_is_stashed_once_and_only_if_it_is_exact_and_new(session: Session) -> None:
    s, a, b, c, d = session.wanted
    plan = session.plan([s, b, c, d])
    assert [op.chunk for op in plan.ops if isinstance(op, Stash)] == ["a"]
    assert not any(isinstance(op, Stash) for op in session.plan([s, b, c, d], Policy(stash=False)).ops)
    session.go([s, b, c, d])
    session.go([s, a, b, c, d])
    assert not any(isinstance(op, Stash) for op in session.plan([s, b, c, d]).ops)  # the store has it
    lost = session.plan([a, s, b, c, d], "exact")
    assert [op.chunk for op in lost.ops if isinstance(op, Stash)] == ["s", "b", "c", "d"]


def test_neighbouring_prefills_pay_their_base_once() -> None:
    session = Session()
    wanted = [session.place(name, 10) for name in "ab"]
    first, second = session.plan(wanted).ops
    time = COSTS.ms["prefill"]
    assert first.ms == pytest.approx(time.of(10, 0))
    assert second.ms == pytest.approx(time.of(10, 10) - time.base)


def test_a_clean_view_without_a_canonical_forms_one(session: Session) -> None:
    s, a, b, c, d = session.wanted
    clean = [s, a, b.model_copy(update={"clean": True}), c, d]
    plan = session.go(clean)
    assert [op.op for op in plan.ops if op.uid == b.uid] == ["stash", "form_canonical", "place_canonical"]
    assert plan.predicted_kl == 0
    assert {op.op for op in session.plan(clean).ops} == {"keep"}
    for policy in (
        Policy(kl_budget=1),
        Policy(name="fast"),
    ):  # leaving it clean would be cheaper, and no answer
        back = session.plan([s, a, b, c, d], policy)
        assert [op.op for op in back.ops if op.uid == b.uid] == ["load"]
        assert back.predicted_kl == 0


def test_idle_work_makes_a_patch_of_every_stored_block(session: Session) -> None:
    s, _, b, *_ = session.wanted
    session.go([s, b])
    plan = session.settle()
    assert [(op.op, op.chunk, op.tokens) for op in plan.ops] == [
        (kind, name, 10) for name in "acd" for kind in ("form_canonical", "form_patch")
    ]
    each = COSTS.time("form_canonical", 10) + COSTS.time("form_patch", 10)
    assert plan.predicted_ms == pytest.approx(3 * each)
    assert session.settle().ops == ()
    session.go([b])  # s leaves the front, where nothing was in front of it that a patch could hold
    assert session.settle().ops == ()


def test_an_image_takes_rows_and_positions_of_its_own(session: Session) -> None:
    """10 rows over 4 positions: what follows stands at position 4 + …, and a hole closes both gaps."""
    image, note = session.place("image", 10, span=4), session.place("note", 3)
    lead = session.frame.start + session.graph.tokens
    session.go([*session.wanted, image, note])
    placed = session.graph.get(note.uid)
    assert placed is not None
    assert (placed.row, placed.position) == (lead + 10, lead + 4)
    plan = session.go([w for w in session.wanted if w is not image], "fast")
    moved = next(op for op in plan.ops if op.op == "rotate" and op.uid == note.uid)
    assert (moved.row - moved.from_row, moved.position - moved.from_position) == (-10, -4)


def test_an_image_of_another_shape_turns_what_stands_behind_it_in_place(session: Session) -> None:
    """16 tokens as 2 x 8 or as 4 x 4: the rows behind stay, their positions do not."""
    wide, note = session.place("wide", 16, span=8), session.place("note", 40)
    session.go([wide, note])
    plan = session.go([session.place("square", 16, span=4), note], "fast")
    assert not [op for op in plan.ops if op.op == "rotate"]  # the window starts 4 positions later instead
    session.go([session.place("lead", 60), wide, note], "fast")
    plan = session.go([session.wanted[0], session.place("square", 16, span=4), note], "fast")
    moved = next(op for op in plan.ops if op.op == "rotate")
    assert moved.uid == note.uid
    assert (moved.row, moved.position) == (moved.from_row, moved.from_position - 4)
