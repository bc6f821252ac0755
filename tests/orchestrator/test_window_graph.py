"""The window as a graph."""

from __future__ import annotations

import json

import pytest
from agentkv_orchestrator.errors import WindowError
from agentkv_orchestrator.window import Placement, WindowGraph
from hypothesis import given, settings

from tests.orchestrator.fake_machine import Session
from tests.orchestrator.test_random_edits import play
from tests.strategies import chunk, edits, policies


def window(*parts: tuple[str, tuple[str, ...]]) -> WindowGraph:
    """Chunks of 10 tokens from (id, antecedents); uids count from 0."""
    return WindowGraph(
        placements=tuple(
            Placement(
                uid=i,
                chunk=chunk(name, 10),
                row=10 * i,
                antecedents=seen,
                antecedent_tokens=10 * len(seen),
                exact=True,
                revision=0,
            )
            for i, (name, seen) in enumerate(parts)
        )
    )


def test_edges_follow_what_is_in_the_tensors() -> None:
    graph = window(("s", ()), ("a", ("s", "gone")), ("b", ("a",)), ("c", ("s", "a", "b")))
    assert graph.antecedents(3) == (0, 1, 2)
    assert graph.antecedents(1) == (0,)
    assert graph.dependents(0) == (1, 3)
    assert graph.cascade(0) == (1, 2, 3)
    assert graph.cascade(3) == ()
    assert graph.in_front(2) == ("s", "a")
    assert graph.stale() == (1, 2)
    assert graph.tokens == 40


def test_two_placements_of_a_chunk_are_two_nodes() -> None:
    graph = window(("a", ()), ("a", ("a",)), ("b", ("a", "a")), ("a", ("a", "a", "b")))
    assert graph.antecedents(1) == (0,)
    assert graph.antecedents(2) == (0, 1)
    assert graph.antecedents(3) == (0, 1, 2)
    assert graph.stale() == ()


def test_an_antecedent_with_the_same_content_is_another_placement() -> None:
    assert window(("a", ("a",)), ("b", ())).antecedents(0) == ()


def test_reorders_may_close_a_cycle() -> None:
    graph = window(("b", ("a",)), ("a", ("b",)))
    assert graph.cascade(0) == (1,)
    assert graph.cascade(1) == (0,)


def test_a_clean_view_is_not_stale() -> None:
    graph = window(("s", ()), ("a", ()))
    clean = graph.placements[1].model_copy(update={"clean": True})
    assert graph.stale() == (1,)
    assert graph.revise([graph.placements[0], clean]).stale() == ()


def test_a_revision_leaves_the_old_window_alone() -> None:
    graph = window(("s", ()), ("a", ("s",)))
    shorter = graph.revise(graph.placements[:1])
    assert (graph.revision, shorter.revision) == (0, 1)
    assert (len(graph.placements), len(shorter.placements)) == (2, 1)


@settings(max_examples=30, deadline=None)
@given(edits, policies)
def test_json_brings_the_window_back(script: list, policy: object) -> None:
    session = Session(max_rows=300)
    play(session, script, policy)  # type: ignore[arg-type]
    again = WindowGraph.from_json(session.graph.to_json())
    assert again == session.graph
    assert again.stale() == session.graph.stale()
    assert set(again.graph.edges) == set(session.graph.graph.edges)


def broken(**change: object) -> str:
    data = json.loads(window(("s", ()), ("a", ("s",))).to_json())
    data["placements"][1] |= change
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (broken(uid=0), "each uid once"),
        (broken(row=11), "row 10"),
        (broken(antecedent_tokens=0), "0 tokens for 1 antecedents"),
        (broken(colour="red"), r"placements\.1\.colour"),
        (broken(row=-1), r"placements\.1\.row"),
        (broken(antecedents=[[0, 9]]), "antecedents 0 to 9, expected a stretch of the 1 ids"),
        (broken(antecedents=["s"]), "antecedents"),
        ("[]", "at the top"),
        ("{", "Invalid JSON"),
    ],
)
def test_a_window_that_contradicts_itself_is_refused(text: str, message: str) -> None:
    with pytest.raises(WindowError, match=message):
        WindowGraph.from_json(text)


def test_an_unknown_uid_is_refused() -> None:
    with pytest.raises(WindowError, match="got uid 7, expected one of \\[0\\]"):
        window(("s", ())).cascade(7)


def test_an_edge_carries_the_revision_in_which_its_dependent_was_written() -> None:
    session = Session()
    session.go([session.place(name, 10) for name in "sa"])
    session.go([*session.wanted, session.place("b", 10)])
    edges = session.graph.graph.edges(data="revision")
    assert sorted(edges) == [(1, 2, 1), (1, 3, 2), (2, 3, 2)]


def test_what_an_edit_made_stale() -> None:
    session = Session()
    session.go([session.place(name, 10) for name in "sabc"])
    s, _, b, c = session.wanted
    before = session.graph
    session.go([s, b, c], "fast")
    slid = session.graph
    assert slid.staled(before) == (b.uid, c.uid)
    session.go([s, c, b], "fast")
    assert session.graph.staled(slid) == ()
    assert session.graph.staled(before) == (c.uid, b.uid)
    session.go([session.place("x", 10), *session.wanted], "fast")
    assert session.graph.staled(slid) == (s.uid,)


def test_revisions_share_what_an_edit_does_not_touch() -> None:
    """Copy on write: an append copies no placement, whichever of two branches makes it."""
    session = Session()
    session.go([session.place(name, 10) for name in "sab"])
    base = session.graph
    for name in "xy":
        session.graph, session.wanted = base, session.wanted[:3]
        session.go([*session.wanted, session.place(name, 10)])
        assert all(p is q for p, q in zip(base.placements, session.graph.placements, strict=False))
        assert session.graph.placements[3].antecedents.parent is base.placements[2].antecedents
