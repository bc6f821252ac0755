"""Old window against new: what was lost and gained in front of each chunk, and who is who."""

from __future__ import annotations

from random import Random

import pytest
from agentkv_orchestrator.diff import Wanted, diff
from agentkv_orchestrator.errors import WindowError
from agentkv_orchestrator.match import match
from agentkv_orchestrator.policy import Policy
from agentkv_orchestrator.residency import FrozenResidency, Resident
from agentkv_orchestrator.window import WindowGraph
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.orchestrator.fake_machine import Session
from tests.orchestrator.test_random_edits import play
from tests.strategies import chunk, edits


@pytest.fixture
def session() -> Session:
    """s a b c, computed in one go; uids 1 to 4."""
    session = Session()
    session.go([session.place(name, 10) for name in "sabc"])
    return session


def test_kept_survivor_dropped(session: Session) -> None:
    s, a, b, c = session.wanted
    changes = diff(session.graph, [s, b, c])
    assert [(x.chunk.id, x.kind) for x in changes] == [
        ("s", "kept"),
        ("b", "survivor"),
        ("c", "survivor"),
        ("a", "dropped"),
    ]
    assert (changes[1].lost, changes[1].lost_tokens, changes[1].gained) == (1, 10, 0)
    assert changes[2].lost == 1
    assert a.uid == changes[3].uid


def test_leaving_from_the_front_is_no_hole(session: Session) -> None:
    s, a, b, c = session.wanted
    assert [x.hole for x in diff(session.graph, [a, b, c])[:3]] == [False, False, False]
    assert [x.hole for x in diff(session.graph, [s, a, c])[:3]] == [False, False, True]
    assert [x.hole for x in diff(session.graph, [s, b, c])[:3]] == [False, True, True]


def test_gained_and_reordered(session: Session) -> None:
    s, a, b, c = session.wanted
    x = session.place("x", 7)
    changes = diff(session.graph, [s, x, a, b, c])
    assert [y.kind for y in changes] == ["kept", "new", "survivor", "survivor", "survivor"]
    assert (changes[3].gained, changes[3].gained_tokens, changes[3].lost) == (1, 7, 0)


def test_what_changed_sides_is_reordered_not_lost(session: Session) -> None:
    s, a, b, c = session.wanted
    swapped = [s, b, a, c]
    changes = diff(session.graph, swapped)
    assert [y.kind for y in changes] == ["kept", "reordered", "reordered", "reordered"]
    assert not any(y.lost or y.gained or y.lost_tokens or y.gained_tokens for y in changes)
    session.go(swapped, "fast")
    assert diff(session.graph, swapped) == changes  # the tensors are the same, so is what is wrong with them
    moved = diff(session.graph, [s, c, a])[1]
    assert (moved.kind, moved.lost, moved.lost_tokens) == ("reordered", 1, 10)


def test_new_and_recalled_differ_by_what_is_stored(session: Session) -> None:
    wanted = [*session.wanted, session.place("x", 5), session.place("y", 5)]
    held = FrozenResidency({"y": Resident(patches=frozenset({"some context"}))})
    assert [x.kind for x in diff(session.graph, wanted, held)[4:]] == ["new", "recalled"]


def test_a_clean_view_wants_no_antecedents(session: Session) -> None:
    s, a, b, c = session.wanted
    change = diff(session.graph, [s, a.model_copy(update={"clean": True}), b, c])[1]
    assert (change.kind, change.lost, change.gained) == ("survivor", 1, 0)
    assert diff(session.graph, [s.model_copy(update={"clean": True}), a, b, c])[0].kind == "kept"


def test_a_chunk_in_front_twice_is_lost_once(session: Session) -> None:
    again = session.place("s", 10)
    s, a, b, c = session.wanted
    session.go([s, again, a, b, c])
    changes = diff(session.graph, [s, a, b, c])
    assert [x.lost for x in changes[1:4]] == [0, 0, 0]  # they never saw the second copy
    session.go([s, again, a, b, c, session.place("d", 3)])
    change = diff(session.graph, [again, a, b, c, session.wanted[-1]])[4]
    assert (change.lost, change.lost_tokens) == (1, 10)


def test_lengths_of_what_left_long_ago_are_remembered(session: Session) -> None:
    _, _, b, c = session.wanted
    session.go([b, c], "fast")
    session.go([c], "fast")
    change = diff(session.graph, [c])[0]
    assert (change.lost, change.lost_tokens) == (3, 30)


def test_contradictions_are_refused(session: Session) -> None:
    with pytest.raises(WindowError, match="each uid once"):
        diff(session.graph, [session.wanted[0]] * 2)
    with pytest.raises(WindowError, match="give edited content a fresh uid"):
        diff(session.graph, [Wanted(uid=session.wanted[0].uid, chunk=chunk("edited", 10))])


ids = st.lists(st.sampled_from("abcd"), max_size=9)


@given(ids, ids)
def test_match_reuses_every_uid_it_can_and_keeps_a_longest_common_subsequence(
    old: list[str], new: list[str]
) -> None:
    live = list(enumerate(old))
    uids = match(live, new, 100)
    assert len(set(uids)) == len(new)
    for uid, chunk_id in zip(uids, new, strict=True):
        assert uid >= 100 or old[uid] == chunk_id
    for name in set(old) & set(new):
        reused = sum(uid < 100 for uid, chunk_id in zip(uids, new, strict=True) if chunk_id == name)
        assert reused == min(old.count(name), new.count(name))
    fresh = [uid for uid in uids if uid >= 100]
    assert fresh == list(range(100, 100 + len(fresh)))
    assert longest_rise([uid for uid in uids if uid < 100]) >= common(old, new)


def longest_rise(values: list[int]) -> int:
    best: list[int] = []
    for i, value in enumerate(values):
        best.append(1 + max((best[j] for j in range(i) if values[j] < value), default=0))
    return max(best, default=0)


def common(a: list[str], b: list[str]) -> int:
    """Length of the longest common subsequence, by its definition."""
    if not a or not b:
        return 0
    if a[0] == b[0]:
        return 1 + common(a[1:], b[1:])
    return max(common(a[1:], b), common(a, b[1:]))


def test_match_of_an_edited_message_list() -> None:
    live = [(1, "system"), (2, "ask"), (3, "answer"), (4, "ask")]
    assert match(live, ["system", "ask", "answer", "ask", "thanks"], 5) == [1, 2, 3, 4, 5]
    assert match(live, ["system", "answer", "ask"], 5) == [1, 3, 4]
    assert match(live, ["answer", "system"], 5) in ([3, 1],)
    assert match([], ["a", "a"], 7) == [7, 8]


def written_out(graph: WindowGraph, wanted: list[Wanted], at: int) -> tuple[object, ...]:
    """What `diff` says of a live chunk, from lists of ids that are all different."""
    live = graph.get(wanted[at].uid)
    assert live is not None
    before = list(live.antecedents)
    front = [] if wanted[at].clean else [w.chunk.id for w in wanted[:at]]
    behind = [w.chunk.id for w in wanted[at + 1 :]]
    if before == front:
        return "kept", 0, 0, 0, 0, False, False
    length = {w.chunk.id: w.chunk.length for w in wanted}
    saw = {w.chunk.id for w in wanted if (p := graph.get(w.uid)) and live.chunk.id in list(p.antecedents)}
    lost = [a for a in before if a not in front and a not in behind]
    stayed = [a for a in before if a not in lost]
    gained = [a for a in front if a not in before and a not in saw]
    common = [a for a in before if a in front]
    turned = any(a in behind for a in before) or any(a in saw for a in front if a not in before)
    reordered = turned or common != [a for a in front if a in before]
    lost_tokens = live.antecedent_tokens - sum(length[a] for a in stayed)
    came = sum(length[a] for a in gained)
    hole = before[: len(lost)] != lost
    return (
        "reordered" if reordered else "survivor",
        len(lost),
        lost_tokens,
        len(gained),
        came,
        reordered,
        hole,
    )


@settings(max_examples=150, deadline=None)
@given(edits, st.randoms(use_true_random=False), st.integers(0, 3))
def test_changes_are_those_of_the_lists_written_out(script: list, random: Random, swaps: int) -> None:
    session = Session(max_rows=400)
    play(session, [step for step in script if step[0] not in ("again", "clean")], Policy(name="fast"))
    wanted = [w for w in session.wanted if random.random() < 0.8]
    for _ in range(swaps if wanted else 0):
        wanted.insert(random.randrange(len(wanted)), wanted.pop(random.randrange(len(wanted))))
    wanted.insert(random.randint(0, len(wanted)), session.place("fresh", 7))
    for at, change in enumerate(diff(session.graph, wanted)[: len(wanted)]):
        if session.graph.get(wanted[at].uid) is not None:
            assert (change.kind, *change[4:]) == written_out(session.graph, wanted, at)
