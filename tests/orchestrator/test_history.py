"""History: undo and redo on values, and on a machine whose rows must come back."""

from __future__ import annotations

import pytest
from agentkv_orchestrator.diff import Wanted
from agentkv_orchestrator.errors import WindowError
from agentkv_orchestrator.history import DEPTH, History, Revision
from agentkv_orchestrator.policy import Policy
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.orchestrator.fake_machine import Cell, Session
from tests.orchestrator.test_random_edits import edited
from tests.strategies import edits, policies


def grown(count: int) -> History[int]:
    history = History((Revision(0, "opened", 0),))
    for number in range(1, count + 1):
        history = history.then(Revision(number, f"edit {number}", number))
    return history


def test_undo_and_redo_walk_the_same_revisions() -> None:
    history = grown(4)
    assert history.back(3).now.content == 1
    assert history.back(3).forward(2).now.content == 3
    assert history.back(3).forward(3) == history
    assert history.back(1).back(2) == history.back(3)


def test_an_edit_ends_redo() -> None:
    history = grown(3).back(2).then(Revision(9, "another", 9))
    assert [r.content for r in history.past] == [0, 1, 9]
    assert history.future == ()


@pytest.mark.parametrize("steps", [0, -1, 4])
def test_more_than_there_is_is_refused(steps: int) -> None:
    with pytest.raises(WindowError, match=f"undo of {steps} steps, expected 1 to 3"):
        grown(3).back(steps)
    with pytest.raises(WindowError, match="nothing to redo"):
        grown(3).forward(1)


def test_the_past_is_bounded_and_shared() -> None:
    history = grown(3 * DEPTH)
    assert len(history.past) == DEPTH
    assert history.past[0].content == 2 * DEPTH + 1
    branch = history.then(Revision(0, "branch", -1))
    assert all(a is b for a, b in zip(branch.past, history.past[1:], strict=False))


def test_it_prints_where_it_stands() -> None:
    lines = str(grown(3).back(1)).splitlines()
    assert [line[0] for line in lines] == [" ", " ", ">", " "]
    assert lines[2].endswith("2  edit 2")
    assert lines[3].endswith("(undone)")


def test_a_rewritten_history_keeps_its_shape() -> None:
    history = grown(3).back(1).rewritten(lambda n: n * 10)
    assert [r.content for r in (*history.past, *history.future)] == [0, 10, 20, 30]


class Editor:
    """A session with a history."""

    def __init__(self) -> None:
        self.session = Session(capacity=48, max_rows=300)
        self.history: History[tuple[Wanted, ...]] = History((Revision(0, "opened", ()),))
        self.seen: dict[int, list[Cell]] = {}

    def edit(self, edit: tuple[str, int, int], policy: Policy) -> None:
        if edit[0] == "settle":
            return
        wanted = edited(self.session, *edit)
        if sum(w.chunk.length for w in wanted) <= self.session.max_rows:
            self.session.go(wanted, policy)
            self.history = self.history.then(Revision(self.session.graph.revision, edit[0], tuple(wanted)))

    def go(self, history: History[tuple[Wanted, ...]], policy: Policy) -> None:
        plan = self.session.go(history.now.content, policy)
        assert plan.predicted_kl <= plan.kl_budget or policy.name == "fast"
        self.history = history


@settings(max_examples=100, deadline=None)
@given(edits, policies, st.data())
def test_undo_and_redo_leave_what_was_wanted_then(script: list, policy: Policy, data: st.DataObject) -> None:
    """Each plan passes check, keeps its budget, and the rows hold the revision (`Session.go` compares)."""
    editor = Editor()
    for edit in script:
        editor.edit(edit, policy)
        if len(editor.history.past) > 1 and data.draw(st.booleans()):
            editor.go(editor.history.back(data.draw(st.integers(1, len(editor.history.past) - 1))), policy)
        if editor.history.future and data.draw(st.booleans()):
            editor.go(editor.history.forward(data.draw(st.integers(1, len(editor.history.future)))), policy)
    assert tuple(editor.session.wanted) == editor.history.now.content


@settings(max_examples=100, deadline=None)
@given(edits, st.integers(1, 30))
def test_undo_restores_every_context_while_nothing_is_forgotten(script: list, steps: int) -> None:
    """With a budget of nothing and a store that keeps all, a window goes back to KV that is stale nowhere."""
    policy, editor = Policy(kl_budget=0), Editor()
    for edit in script:
        editor.edit(edit, policy)
    if len(editor.history.past) == 1:
        return
    editor.go(editor.history.back(min(steps, len(editor.history.past) - 1)), policy)
    assert editor.session.graph.stale() == ()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["evict", "move"]), *[st.integers(0, 99)] * 2), min_size=1, max_size=6)
)
def test_undo_of_evictions_and_moves_computes_nothing(script: list) -> None:
    editor, fast = Editor(), Policy(name="fast")
    editor.session.go([editor.session.place(f"c{i}", 3 + i) for i in range(6)], fast)
    editor.history = editor.history.then(Revision(1, "six", tuple(editor.session.wanted)))
    for edit in script:
        if editor.session.wanted:
            editor.edit(edit, fast)
    plan = editor.session.plan(editor.history.past[1].content, fast)
    assert plan.tokens()["recomputed"] == 0
    assert plan.predicted_kl == 0
