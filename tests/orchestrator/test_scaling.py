"""Planning grows with the window, not with its square; counted in calls, which no other process disturbs."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from agentkv_orchestrator.check import check
from agentkv_orchestrator.lineage import Lineage
from agentkv_orchestrator.match import match
from agentkv_orchestrator.planner import after
from agentkv_orchestrator.policy import Policy
from agentkv_orchestrator.window import WindowGraph

from bench.ops.planning import EDITS, Case, Edit, conversation

SMALL, LARGE = 60, 600
LINEAR = 14
"""Ten times the chunks may take this many times the work."""


def calls(work: Callable[[], object]) -> int:
    """Python and C calls that `work` makes."""
    count = 0

    def counting(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counting)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_ten_times_the_chunks_are_about_ten_times_the_work(edit: Edit) -> None:
    small, large = Case(edit, SMALL), Case(edit, LARGE)
    for work in (Case.plan, Case.check, Case.after):
        assert calls(lambda work=work: work(large)) <= LINEAR * calls(lambda work=work: work(small)), work
    check(large.plan(), large.graph, large.wanted, large.held, large.rows)


def links(graph: WindowGraph) -> int:
    """Links of all lineages together, shared ones once."""
    found: set[int] = set()
    for p in graph.placements:
        link: Lineage | None = p.antecedents
        while link is not None and id(link) not in found:
            found.add(id(link))
            link = link.parent
    return len(found)


@pytest.mark.parametrize("turns", [1, 10])
def test_antecedents_are_shared(turns: int) -> None:
    """Computed in one go or turn by turn: a window of n chunks holds n links, not n²/2."""
    graph = conversation(LARGE, turns)
    assert links(graph) <= LARGE + turns
    assert len(graph.to_json()) <= LINEAR * len(conversation(SMALL, turns).to_json())


def test_a_window_that_slid_at_every_turn_is_written_in_linear_size() -> None:
    """Every turn's chunks were computed behind others than those of the turn before."""
    sizes = [len(slid(n).to_json()) / n for n in (30, 120)]
    assert sizes[1] <= 1.2 * sizes[0]
    assert WindowGraph.from_json(slid(30).to_json()) == slid(30)


def slid(chunks: int) -> WindowGraph:
    case = Case(EDITS[0], chunks)
    case.policy = Policy(name="fast")  # nothing is computed again
    graph, wanted = case.graph, case.wanted[:-1]
    for turn in range(chunks):
        wanted = [wanted[0], *wanted[2:], case.fresh(turn)]
        graph = after(graph, case.planned(graph, wanted), wanted, case.held)
    return graph


def test_matching_a_long_list_whose_head_changed_is_no_quadratic_search() -> None:
    def work(n: int) -> int:
        old = [f"c{i}" for i in range(n)]
        return calls(lambda: match(list(enumerate(old)), ["clock", *old[1:-1], "new"], n))

    assert work(LARGE) <= LINEAR * work(SMALL)
