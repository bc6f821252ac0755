"""Order-free messages of a window: marked by the caller, placed by a commit."""

from __future__ import annotations

import pytest

from agentkv import Handle, Window
from agentkv.errors import InvalidInput, TooLong
from agentkv.testing import RecordingEngine, recording_engine, rows

Documents = dict[str, str]
TEXTS = {
    name: " ".join(f"w{first + i}" for i in range(6))
    for name, first in (("a", 3), ("b", 13), ("c", 23), ("d", 33))
}


def ids(*names: str) -> list[int]:
    return [int(word[1:]) for name in names for word in TEXTS[name].split()]


def opened(engine: RecordingEngine, *documents: str, policy: str = "balanced") -> tuple[Window, list[Handle]]:
    window = engine.window(policy=policy)
    window.append("w1 w2", kind="system", pin=True)
    return window, [window.append(TEXTS[name], kind="document", order_free=True) for name in documents]


def test_a_commit_places_what_comes_back_in_another_order() -> None:
    with recording_engine() as engine:
        window, (a, b) = opened(engine, "a", "b")
        question = window.append("w50", kind="user")
        window.commit()
        for handle in (a, b, question):
            window.evict(handle)
        found = [window.append(TEXTS[name], order_free=True) for name in ("c", "b", "a")]
        window.append("w51", kind="user")
        plan = window.plan()
        assert window.content.live()[1].handle is found[0], "a preview changes nothing"
        done = window.commit()
        assert (done.predicted_ms, done.predicted_kl) == (plan.predicted_ms, plan.predicted_kl)
        first = rows(window.kv)[2:20]
        assert sorted(first) == sorted(ids("a", "b", "c"))
        assert [e.handle for e in window.content.live()[1:4]] != found
        assert rows(window.kv) == window.ids().tolist()
        assert [e.handle.kind for e in window.content.live()] == ["system", "note", "note", "note", "user"]


def test_a_move_and_a_reorder_choose_the_place() -> None:
    with recording_engine() as engine:
        window, (a, b, c) = opened(engine, "a", "b", "c")
        window.commit()
        window.move(a)
        window.commit()
        assert rows(window.kv)[-6:] == ids("a")
        window.reorder([c, b])
        window.commit()
        assert rows(window.kv)[2:] == ids("c", "b", "a")
        assert not any(e.order_free for e in window.content.live())


def test_a_recall_to_a_chosen_place_stays_there() -> None:
    with recording_engine() as engine:
        window, (a, b, c) = opened(engine, "a", "b", "c")
        window.commit()
        window.evict(c)
        window.commit()
        window.recall(c, before=a)
        window.commit()
        assert rows(window.kv)[2:] == ids("c", "a", "b")
        window.evict(b)
        window.commit()
        window.recall(b)
        assert next(e for e in window.content.live() if e.handle is b).order_free


@pytest.mark.parametrize("kind", ["system", "user", "assistant"])
def test_a_turn_of_the_chat_is_never_order_free(kind: str) -> None:
    with recording_engine() as engine, engine.window() as window:
        with pytest.raises(InvalidInput, match="order_free"):
            window.append("w1 w2", kind=kind, order_free=True)
        assert len(window) == 0


def test_pinned_and_order_free_exclude_each_other() -> None:
    with recording_engine() as engine:
        window, (a, b) = opened(engine, "a", "b")
        with pytest.raises(InvalidInput, match="pinned"):
            window.append("w9", pin=True, order_free=True)
        window.pin(a)
        wanted = {w.uid: w for w in window.content.wanted()}
        assert [wanted[uid].pinned for h in (a, b) for uid, _ in window.content.get(h.id).parts] == [
            True,
            False,
        ]  # type: ignore[union-attr]


def test_what_does_not_fit_is_told_as_ever() -> None:
    with recording_engine(max_positions=64) as engine:
        window, _ = opened(engine, "a", "b")
        with pytest.raises(TooLong):
            window.plan(headroom=60)


def test_a_fork_places_for_itself() -> None:
    with recording_engine() as engine:
        window, (a, b) = opened(engine, "a", "b")
        twin = window.fork()
        before = rows(window.kv)
        twin.evict(a)
        twin.append(TEXTS["c"], order_free=True)
        twin.commit()
        assert rows(window.kv) == before
        assert sorted(rows(twin.kv)[2:]) == sorted(ids("b", "c"))
        assert b in [e.handle for e in twin.content.live()]
