"""A window that is handed whole message lists: who is recognised, what is computed, what a refusal leaves."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from agentkv_orchestrator.plan import Plan
from agentkv_orchestrator.policy import Policy
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkv import Window
from agentkv.errors import Busy, EmptyChunk, InvalidInput, TooLong
from agentkv.inputs import Ids, Marks
from agentkv.media import Tokens
from agentkv.showing import Message
from tests.runtime.cases import STRICT, assert_exact, assert_unchanged, engine, ids, snapshot, words

LOOSE = Policy(name="balanced", kl_budget=10.0)

POOL = [ids(count, 40 + count) for count in (5, 12, 30, 30, 41, 64)]


def message(tokens: Ids, **more: Any) -> Message:
    return Message((Tokens(tokens),), **{"kind": "note", **more})


def held(*messages: Message) -> list[int]:
    return [int(i) for m in messages for piece in m.pieces for i in piece.ids]


def prefilled(plan: Plan) -> int:
    return sum(op.tokens for op in plan.ops if op.op == "prefill")


@given(
    lists=st.lists(st.lists(st.integers(0, len(POOL) - 1), min_size=1, max_size=7), min_size=2, max_size=4)
)
@settings(max_examples=12, deadline=None)
def test_any_list_after_any_other(lists: list[list[int]]) -> None:
    """Holes, recalls, other orders and repetitions: the window holds the list, as a re-prefill would."""
    with engine() as built, built.bare_window(STRICT, None) as window:
        for numbers in lists:
            wanted = [message(POOL[n], label=str(n)) for n in numbers]
            handles = window.show(wanted)
            window.commit()
            assert window.ids().tolist() == held(*wanted)
            assert len(set(handles)) == len(wanted)
            assert_exact(window)


def test_what_did_not_change_keeps_its_handle_and_its_rows() -> None:
    with engine() as built, built.bare_window(LOOSE, None) as window:
        a, b, c = (message(POOL[n]) for n in (3, 4, 5))
        first = window.show([a, b, c])
        window.commit()
        assert window.show([a, c]) == (first[0], first[2])  # a hole
        assert prefilled(window.commit()) == 0
        assert window.show([c, a]) == (first[2], first[0])  # another order
        assert prefilled(window.commit()) == 0
        assert window.show([c, a, b]) == (first[2], first[0], first[1])  # back again
        assert prefilled(window.commit()) == 0
        assert window.content.get(first[1].id).recalls == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("label", ["", "clock"])
def test_an_edited_message_costs_what_differs(label: str) -> None:
    """A clock of another length in a long header, with and without an id."""
    with engine() as built, built.bare_window(LOOSE, None) as window:
        front, back, rest = ids(80, 1), ids(70, 2), message(ids(90, 3))
        for turn, size in enumerate((3, 4, 4, 2)):
            clock = message(np.concatenate([front, ids(size, 50 + turn), back]), label=label)
            window.show([clock, rest] if turn % 2 else [clock, rest, message(ids(9, 4))])
            plan = window.commit()
            if turn:
                assert prefilled(plan) <= size + 9
            assert window.ids().tolist()[: len(held(clock))] == held(clock)


def test_a_label_finds_the_edited_message_where_places_mislead() -> None:
    with engine() as built, built.bare_window(LOOSE, None) as window:
        one, two = ids(60, 1), ids(60, 2)
        window.show([message(one, label="a"), message(two, label="b")])
        window.commit()
        edited = np.concatenate([two[:50], ids(4, 9), two[50:]])
        window.show([message(edited, label="b")])  # the first one left, the second was edited
        assert prefilled(window.commit()) == 4
        window.show([message(one, label="b")])  # an id that was given to something else
        window.commit()
        assert window.ids().tolist() == one.tolist()


def test_texts_of_the_same_words_are_no_edits_of_each_other() -> None:
    """A shuffled text shares every token and no run of them: nothing is divided or compared at length."""
    with engine() as built, built.bare_window(LOOSE, None) as window:
        text = ids(400, 1)
        (old,) = window.show([message(text)])
        window.commit()
        parts = window.content.get(old.id).parts  # type: ignore[union-attr]
        (new,) = window.show([message(np.sort(text))])
        assert new != old
        assert window.content.get(old.id).parts == parts  # type: ignore[union-attr]


def test_the_list_says_what_is_pinned() -> None:
    with engine() as built, built.bare_window(LOOSE, None) as window:
        (kept, _) = window.show([message(POOL[3], pin=True), message(POOL[4])])
        window.commit()
        assert window.content.get(kept.id).pinned  # type: ignore[union-attr]
        window.show([message(POOL[4])])
        window.commit()
        assert window.ids().tolist() == POOL[4].tolist()
        window.show([message(POOL[3])])
        assert not window.content.get(kept.id).pinned  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (["w3"], InvalidInput),
        ([Message((), "note")], EmptyChunk),
        ([message(np.empty(0, dtype=np.int64))], EmptyChunk),
        ([message(np.array([10**6]))], InvalidInput),
        ([message(POOL[0], kind=3)], InvalidInput),
        ([message(ids(100, i)) for i in range(40)], TooLong),
    ],
)
def test_a_refused_list_changes_nothing(bad: list[Message], error: type[Exception]) -> None:
    with engine() as built, built.bare_window(LOOSE, 1000) as window:
        window.show([message(POOL[3]), message(POOL[4])])
        window.commit()
        before = snapshot(window)
        with pytest.raises(error):
            window.show([message(POOL[3]), *bad])
        assert_unchanged(window, before)


def test_an_edit_and_its_original_at_once() -> None:
    """The original comes back as itself, though its placements went to the edit."""
    with engine() as built, built.bare_window(STRICT, None) as window:
        text = ids(60, 1)
        other = np.concatenate([text[:30], ids(5, 2), text[30:]])
        window.show([message(text)])
        window.commit()
        window.show([message(other)])
        window.commit()
        window.show([message(text), message(other)])
        window.commit()
        assert window.ids().tolist() == [*text.tolist(), *other.tolist()]
        assert_exact(window)


def test_a_fork_in_the_middle_of_an_answer_has_what_is_answered() -> None:
    with engine(chat=True) as built, built.bare_window(STRICT, None) as window:
        asked = [message(POOL[4]), message(POOL[3])]
        window.show(asked)
        pieces = window.stream(None, marks=Marks("w12 ", "w13 "), max_new_tokens=6)
        next(pieces)
        with pytest.raises(Busy):
            window.show(asked[:1])
        twin = window.fork()
        assert twin.ids().tolist() == held(*asked)
        twin.show([asked[0]])
        twin.commit()  # before the first answer is at its end
        assert_exact(twin)
        "".join(pieces)
        answered = window.ids().tolist()
        assert answered[: len(held(*asked))] == held(*asked)
        assert len(answered) == len(held(*asked)) + window.timing.tokens + 2  # both marks
        assert_exact(window)
        alone = built.bare_window(STRICT, None)
        alone.show(asked)
        alone.generate(marks=Marks("w12 ", "w13 "), max_new_tokens=6)
        assert alone.ids().tolist() == answered


def test_nobody_forks_a_list_before_it_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork commits what was noted, and the plan of the list would then be the fork's."""
    show, forks = Window.show, list[Window]()

    def slowly(window: Window, messages: list[Message]) -> Any:
        handles = show(window, messages)
        forking.start()
        forking.join(0.2)
        return handles

    with engine(chat=True) as built, built.bare_window(STRICT, None) as window:
        forking = threading.Thread(target=lambda: forks.append(window.fork()))
        monkeypatch.setattr(Window, "show", slowly)
        asked = [message(POOL[4]), message(POOL[3])]
        pieces = window.stream(asked, marks=Marks("w12 ", "w13 "), max_new_tokens=3)
        next(pieces)
        assert window.last_plan is not None
        assert prefilled(window.last_plan) == len(held(*asked)) + 1  # the mark in front of the answer
        forking.join()
        assert forks[0].ids().tolist() == held(*asked)
        pieces.close()


def test_a_list_that_leaves_no_room_for_an_answer_changes_nothing() -> None:
    """Though placements were divided for a message that was edited."""
    with engine(chat=True) as built, built.bare_window(STRICT, 200) as window:
        text = ids(90, 1)
        window.generate([message(text)], max_new_tokens=3)
        before = snapshot(window)
        edited = np.concatenate([text[:40], ids(60, 2), text[40:]])
        with pytest.raises(TooLong):
            window.generate([message(edited)], max_new_tokens=100)
        assert_unchanged(window, before)
        window.generate([message(edited)], max_new_tokens=3)
        assert_exact(window)


def test_marks_end_an_answer_and_stand_around_it() -> None:
    with engine() as built, built.window(STRICT) as window:
        window.append(words(20, 5))
        window.generate(marks=Marks("w30 w31 ", "w32 "), max_new_tokens=3, stop=False)
        said = window.ids().tolist()[-6:]
        assert said[:2] == [30, 31]
        assert said[-1] == 32
        assert_exact(window)
