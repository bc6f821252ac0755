"""A window that comes from outside: it holds together, or is refused with a WindowError and nothing else."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from agentkv_orchestrator.errors import WindowError
from agentkv_orchestrator.window import WindowGraph
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.orchestrator.fake_machine import Session
from tests.orchestrator.test_random_edits import play
from tests.strategies import edits, policies

JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


def nodes(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to everything inside a JSON value, the value itself first."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(found for key, value in inner for found in nodes(value, (*path, key)))]


def mutated(data: Any, path: tuple[Any, ...], how: str, junk: Any, number: int) -> Any:
    """The value with what stands at `path` replaced, nudged, dropped or doubled."""
    if not path:
        return junk
    parent = data
    for key in path[:-1]:
        parent = parent[key]
    key = path[-1]
    if how == "drop":
        del parent[key]
    elif how == "double" and isinstance(parent, list):
        parent.insert(key, parent[key])
    elif how == "nudge" and isinstance(parent[key], int):
        parent[key] += number
    elif how == "add" and isinstance(parent[key], dict):
        parent[key][str(number)] = junk
    else:
        parent[key] = junk
    return data


def contradictions(graph: WindowGraph) -> list[str]:
    """What is wrong with a window, told from its fields alone and slowly."""
    found, lengths = [], dict[str, set[tuple[int, int]]]()
    placements = graph.placements
    for i, p in enumerate(placements):
        lengths.setdefault(p.chunk.id, set()).add((p.chunk.length, p.chunk.span))
        if sum(q.uid == p.uid for q in placements) != 1:
            found.append("a uid twice")
        if i and p.row != placements[i - 1].row + placements[i - 1].chunk.length:
            found.append("a gap in the rows")
        if i and p.position != placements[i - 1].position + placements[i - 1].chunk.span:
            found.append("a gap in the positions")
        if p.revision > graph.revision or min(p.row, p.position, p.revision, p.roundings) < 0:
            found.append("a number out of range")
        if not 0 <= p.hearsay < float("inf") or p.chunk.length < 1 or p.chunk.span < 1:
            found.append("a number that is none")
    if any(len(sizes) > 1 for sizes in lengths.values()):
        found.append("a chunk of two sizes")
    for p in placements:
        least = [next(iter(lengths[a]))[0] if a in lengths else 1 for a in p.antecedents]
        all_here = all(a in lengths for a in p.antecedents)
        if p.antecedent_tokens < sum(least) or (all_here and p.antecedent_tokens != sum(least)):
            found.append("antecedents of another length")
    return found


@settings(max_examples=30, deadline=None)
@given(edits, policies)
def test_every_window_that_edits_make_holds_together(script: list, policy: Any) -> None:
    session = Session(max_rows=300)
    play(session, script, policy)
    assert not contradictions(session.graph)
    assert WindowGraph.from_json(session.graph.to_json()) == session.graph


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["append", "evict", "move", "again", "clean"]), *[st.integers(0, 99)] * 2)
    ),
    st.data(),
)
def test_a_mutated_window_holds_together_or_is_refused(script: list, data: st.DataObject) -> None:
    """No other exception, and nothing accepted that contradicts itself."""
    session = Session(max_rows=300)
    play(session, script, data.draw(policies))
    written = json.loads(session.graph.to_json())
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(nodes(written)))
        how = data.draw(st.sampled_from(["junk", "nudge", "drop", "double", "add"]))
        written = mutated(written, path, how, data.draw(JUNK), data.draw(st.integers(-3, 3)))
    try:
        graph = WindowGraph.from_json(json.dumps(written))
    except WindowError:
        return
    assert not contradictions(graph)
    assert WindowGraph.from_json(graph.to_json()) == graph
    assert set(graph.stale()) <= set(graph.graph.nodes)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=12) | JUNK.map(json.dumps))
def test_any_other_text_is_refused(text: str) -> None:
    found = None
    with suppress(WindowError):
        found = WindowGraph.from_json(text)
    assert found in (None, WindowGraph())


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(WindowError, match="unicode string"):
        WindowGraph.from_json('{"placements": "\ud800"}')


@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        (1, {"revision": 9}, "uid 2 written in revision 9, expected at most 1"),
        (2, {"antecedent_tokens": 16}, "16 antecedent tokens for uid 3, expected 10"),
        (1, {"hearsay": float("inf")}, "hearsay"),
        (1, {"chunk": {"id": "a", "kind": "doc", "length": 9}}, r"tokens, positions\) \(9, 9\) for uid 2"),
        (0, {"chunk": 7}, r"placements\.0\.chunk"),
        (0, {"antecedents": 7}, r"placements\.0\.antecedents"),
    ],
)
def test_a_contradiction_is_named(place: int, change: dict[str, Any], message: str) -> None:
    session = Session()
    session.go([session.place(name, 5) for name in ("a", "b", "c")])
    written = json.loads(session.graph.to_json())
    written["placements"][place] |= change
    if "chunk" in change and place:
        written["placements"][2] |= {"row": 14, "position": 14, "antecedent_tokens": 14}
    with pytest.raises(WindowError, match=message):
        WindowGraph.from_json(json.dumps(written))
