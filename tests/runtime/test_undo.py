"""Undo, redo and the queries of a window's graph: what was there comes back, as it was."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from agentkv_orchestrator.policy import Policy
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkv import Engine, Window
from agentkv.errors import AlreadyEvicted, ClosedError, ForeignChunk, InvalidInput, NonFinite
from agentkv.testing import recording_engine, rows, same_bits
from tests.runtime.cases import STRICT, assert_exact, assert_kv, engine, ids, live, words
from tests.runtime.script import EDITS, Edit, Script, scripts
from tests.runtime.test_executor import POLICIES, expected
from tests.runtime.test_window_rollback import failing

LOOSE = Policy(kl_budget=10.0)


@pytest.fixture
def built() -> Iterator[Engine]:
    with engine() as built:
        yield built


def shown(window: Window) -> list[tuple[int, bool, bool]]:
    """The live messages, each with its pin and its clean view."""
    return [(e.handle.id, e.pinned, e.clean) for e in window.content.live()]


@settings(max_examples=80, deadline=None)
@given(script=scripts((*EDITS, "clean", "drop"), most=16), policy=POLICIES, data=st.data())
def test_undo_and_redo_show_what_was_shown(script: list[Edit], policy: Policy, data: st.DataObject) -> None:
    """Against books of their own: a list of what each revision showed."""
    with recording_engine() as built:
        player = Script(built.window(policy))
        books, at = [("", shown(player.window))], 0
        for edit in script:
            if edit[0] == "fork":  # the script would go on in either of the two
                continue
            player.one(edit)
            player.window.commit()
            state = (player.text, shown(player.window))
            if state[1] != books[at][1] or state[0] != books[at][0]:
                books, at = [*books[: at + 1], state], at + 1
            goes = data.draw(st.integers(-min(at, 3), min(len(books) - 1 - at, 2)))
            if goes:
                at += goes
                plan = player.window.undo(-goes) if goes < 0 else player.window.redo(goes)
                assert plan.predicted_kl <= plan.kl_budget or policy.name == "fast"
                resync(player, books[at][0])
            assert rows(player.window.kv) == expected(built, books[at][0])
            assert shown(player.window) == books[at][1]
            assert player.window.content == player.window.committed
            assert player.window.history().now.number == player.window.graph.revision


def resync(player: Script, text: str) -> None:
    """The script's books after an undo, read off the window."""
    window = player.window
    assert window.ids().tolist() == expected(window.engine, text)
    everyone = {e.handle.id: e.handle for _, e in window.content.entries}
    player.here = [e.handle for e in window.content.live()]
    player.gone = [h for i, h in everyone.items() if i not in window.content.order and i in player.texts]
    player.pinned = {e.handle.id for _, e in window.content.entries if e.pinned}


def test_an_eviction_is_undone_bit_for_bit(built: Engine) -> None:
    """KV that was stored on its way out comes back as it was; what stayed was not touched."""
    window = built.window(LOOSE)
    handles = [window.append(words(20 + n, n)) for n in range(4)]
    window.commit()
    before = live(window)
    window.evict(handles[2])
    window.commit()
    plan = window.undo()
    assert {op.op for op in plan.ops} == {"keep", "rotate", "load"}
    assert_kv(live(window), before)
    assert_exact(window)
    window.redo()
    assert [e.handle for e in window.content.live()] == [handles[0], handles[1], handles[3]]


@pytest.mark.parametrize("policy", [STRICT, Policy(name="exact")], ids=lambda policy: policy.name)
def test_undo_is_exact_where_that_is_asked_for(policy: Policy, built: Engine) -> None:
    window = built.window(policy)
    system = window.append(words(30, 1), kind="system", pin=True)
    note = window.append(words(40, 2))
    window.append(words(25, 3))
    window.commit()
    window.clean_view(note)
    window.commit()
    window.pin(system, on=False)
    window.move(note)
    window.evict(system)
    window.commit()
    window.undo(2)
    assert shown(window)[0][1:] == (True, False)
    assert_exact(window)
    window.redo(2)
    assert [h for h, _, _ in shown(window)] == [window.content.live()[0].handle.id, note.id]


def test_noted_edits_are_undone_first_and_can_be_redone(built: Engine) -> None:
    window = built.window()
    a = window.append(words(10, 1))
    window.commit()
    window.evict(a)
    window.append(words(7, 2))
    window.undo()
    assert [h for h, _, _ in shown(window)] == [a.id]
    assert [r.number is None for r in window.history().future] == [True]
    window.redo()
    assert len(window) == 7
    window.undo(2)
    assert len(window) == 0


def test_a_replaced_message_comes_back_and_goes_again(built: Engine) -> None:
    """The clock of a header: undo and redo cost nothing where the other text's tokens are stored."""
    window = built.window(LOOSE)
    text = words(120, 1).split()
    old = window.append(" ".join(text), kind="system")
    window.append(words(30, 2))
    window.commit()
    new = window.replace(old, " ".join([*text[:60], "w20 w21", *text[62:]]))
    window.commit()
    assert window.undo().tokens()["recomputed"] == 0
    assert window.ids().tolist()[:120] == built.tokenizer(" ".join(text))["input_ids"]
    with pytest.raises(AlreadyEvicted):
        window.evict(new)
    window.recall(new)  # beside the old one, which has the placements that both had
    window.commit()
    assert len(window) == 270
    window.undo()
    assert window.redo().tokens()["recomputed"] == 0
    window.undo()
    newest = window.replace(old, " ".join([*text[:20], "w22", *text[21:]]))  # divides what the past holds
    window.commit()
    window.undo(2)
    window.redo(2)
    assert newest.id in [h for h, _, _ in shown(window)]
    assert len(window) == 150


def test_whole_prompts_are_undone_and_redone(built: Engine) -> None:
    """Messages take over each other's placements from prompt to prompt; each comes back as it was."""
    window = built.window(STRICT)
    head, tool, note = (ids(40 + n, n) for n in range(3))
    prompts = [np.concatenate(parts) for parts in ([head, tool, note], [head, note, tool], [tool, head])]
    handles = []
    for prompt in prompts:
        handles.append(window.set_prompt(prompt, [40]))
        window.commit()
    for at, go in ((1, window.undo), (0, window.undo), (1, window.redo), (2, window.redo)):
        go()
        assert window.ids().tolist() == prompts[at].tolist()
        assert [e.handle for e in window.content.live()] == list(handles[at])
        assert_exact(window)
    window.undo(2)
    window.recall(next(h for h in handles[2] if h not in handles[0]))
    window.commit()
    assert_exact(window)


def test_order_free_messages_come_back(built: Engine) -> None:
    window = built.window(LOOSE)
    window.append(words(30, 1), kind="system", pin=True)
    free = [window.append(words(20 + n, 5 + n), order_free=True) for n in range(3)]
    window.commit()
    window.evict(free[0])
    window.commit()
    window.undo()
    assert {e.handle for e in window.content.live()} >= set(free)
    assert all(e.order_free for e in window.content.live() if e.handle in free)
    window.redo()
    assert free[0] not in [e.handle for e in window.content.live()]


def test_an_answer_is_a_revision_of_its_own() -> None:
    with engine(chat=True) as built:
        window = built.window(STRICT)
        window.append(words(12, 1), kind="system")
        window.generate(words(8, 2), max_new_tokens=4, stop=False)
        answer = window.last_answer
        assert answer is not None
        assert [r.edit.partition(" ")[0] for r in window.history().past] == ["opened", "appended", "appended"]
        window.undo()
        assert [e.handle.kind for e in window.content.live()] == ["system", "user"]
        assert_exact(window)
        window.generate(max_new_tokens=3, stop=False)  # another answer to the same question
        assert [e.handle.kind for e in window.content.live()] == ["system", "user", "assistant"]
        window.recall(answer)  # what was undone is known, as evicted
        window.commit()
        assert_exact(window)


def test_forks_share_the_past_and_go_on_alone(built: Engine) -> None:
    window = built.window(STRICT)
    a = window.append(words(20, 1))
    window.commit()
    b = window.append(words(20, 2))
    window.commit()
    twin = window.fork()
    assert twin.history() is window.history()
    twin.evict(a)
    twin.commit()
    window.undo()
    assert [h for h, _, _ in shown(window)] == [a.id]
    assert [h for h, _, _ in shown(twin)] == [b.id]
    twin.undo(2)
    assert [h for h, _, _ in shown(twin)] == [a.id]
    assert_exact(twin)
    assert_exact(window)
    with pytest.raises(InvalidInput):
        window.redo(2)


def test_a_failed_undo_leaves_window_and_history_alone(built: Engine) -> None:
    window = built.window(STRICT)
    window.append(words(20, 1))
    window.commit()
    note = window.append(words(20, 2))
    window.commit()
    window.evict(note)
    window.commit()
    for key in tuple(built.store.keys()):
        built.store.drop(key)
    before, past = live(window), window.history()
    error = NonFinite(got="nan", expected="numbers", do="nothing")
    with failing(built, 0, error), pytest.raises(NonFinite):
        window.undo()
    assert same_bits(live(window), before)
    assert window.history() == past
    window.undo()
    assert_exact(window)


def test_what_cannot_be_undone_is_refused(built: Engine) -> None:
    window = built.window()
    with pytest.raises(InvalidInput, match="nothing to undo"):
        window.undo()
    window.append(words(5, 1))
    with pytest.raises(InvalidInput, match="undo of 2 steps"):
        window.undo(2)
    assert len(window) == 5
    with pytest.raises(InvalidInput, match="nothing to redo"):
        window.redo()
    window.close()
    for call in (window.undo, window.redo, window.history, window.stale):
        with pytest.raises(ClosedError):
            call()


def test_history_says_what_was_done(built: Engine) -> None:
    window = built.window(LOOSE)
    a, b = window.append("w20 w21", kind="note"), window.append("w22 w23")
    window.commit()
    window.evict(a)
    window.pin(b)
    window.commit()
    window.commit()
    window.recall(a)
    window.clean_view(a)
    window.commit()
    window.clean_view(a, on=False)
    window.reorder([a, b])
    for n in range(5):
        window.append(words(3, n))
    window.commit()
    edits = [r.edit for r in window.history().past]
    assert edits == [
        "opened",
        "appended note 'w20 w21', note 'w22 w23'",
        "evicted note 'w20 w21', pinned note 'w22 w23'",
        "brought back note 'w20 w21'",
        "appended 5 messages, put back into context note 'w20 w21', reordered",
    ]
    assert str(window.history()).splitlines()[-1].startswith(">")
    numbers = [r.number for r in window.history().past]
    assert numbers == sorted(numbers)


def test_stale_messages_and_what_made_them_stale(built: Engine) -> None:
    window = built.window(LOOSE)
    a, b, c, d = (window.append(words(20, n)) for n in range(4))
    window.commit()
    assert window.stale() == []
    assert window.related(b) == [c, d]
    assert window.related(c, "antecedents") == [a, b]
    assert window.related(a, "cascade") == [b, c, d]
    window.evict(b)
    window.commit()
    first = window.history().now.number
    assert window.stale() == [c, d]
    window.evict(a)
    window.commit()
    assert window.stale() == [c, d]
    assert window.stale(since=first) == []
    window.append(words(5, 9), before=c)
    window.append(words(5, 10))
    window.commit()
    assert window.related(d, "antecedents") == [c]
    with pytest.raises(InvalidInput, match="revision 99"):
        window.stale(since=99)
    with pytest.raises(InvalidInput, match="cascade"):
        window.related(c, "friends")  # type: ignore[arg-type]
    with pytest.raises(AlreadyEvicted):
        window.related(a)


def test_history_holds_no_kv(built: Engine) -> None:
    """Rows and store are all there is: what the store drops is computed again."""
    window = built.window(STRICT)
    window.append(words(30, 1))
    note = window.append(words(30, 2))
    window.append(words(30, 3))
    window.commit()
    window.evict(note)
    window.commit()
    for key in tuple(built.store.keys()):
        built.store.drop(key)
    assert window.undo().tokens()["recomputed"] == 60  # the last one was computed anew without the note
    assert_exact(window)
    assert not any(isinstance(v, torch.Tensor) for r in window.history().past for v in vars(r).values())


def test_a_window_remembers_as_many_messages_as_it_is_told_to() -> None:
    """The rest cannot be recalled, but undo goes back to it."""
    with recording_engine(remembered=2) as built:
        window = built.window("fast")
        kept = window.append("w1 w2", kind="system", pin=True)
        gone = [window.append(f"w{i} w{i + 1}") for i in range(3, 8)]
        window.commit()
        for handle in gone:
            window.evict(handle)
            window.commit()
        window.recall(gone[3])
        window.commit()
        window.evict(gone[3])
        window.commit()
        assert [e.handle for e in window.content.known()] == [kept, gone[3], gone[4]]
        stats = window.stats()
        assert (stats["messages"], stats["remembered"]) == (1, 2)
        assert stats["registry_bytes"] == sum(built.chunks.sizes)
        with pytest.raises(ForeignChunk, match="not yet forgotten"):
            window.recall(gone[0])
        assert {chunk.id for r in window.history().past for e in r.content for _, chunk in e.parts} <= (
            window.holds()
        )
        window.undo(7)
        assert rows(window.kv) == [1, 2, *range(3, 5), *range(4, 6), *range(5, 7), *range(6, 8), *range(7, 9)]
        window.evict(gone[0])
        window.commit()
