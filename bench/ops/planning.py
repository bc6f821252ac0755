"""Planning, checking and book-keeping of edits of long windows: no tensors, processor milliseconds of one
thread, the least of several laps."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Any

from agentkv_orchestrator.check import check
from agentkv_orchestrator.chunks import Chunk, digest
from agentkv_orchestrator.cost import CostTable
from agentkv_orchestrator.diff import Wanted
from agentkv_orchestrator.errors import PlanError
from agentkv_orchestrator.lineage import EMPTY
from agentkv_orchestrator.plan import Plan
from agentkv_orchestrator.planner import after, make_plan
from agentkv_orchestrator.policy import Policy
from agentkv_orchestrator.residency import Context, FrozenResidency, Resident
from agentkv_orchestrator.window import Frame, WindowGraph

from bench.timing import alternate

CHUNKS = (200, 2000)
TOKENS = 128
"""Of a chunk, what content-defined cutting aims at."""

Window = list[Wanted]
Edit = Callable[["Case", Window], Window]


class Case:
    """One edit of a window of `chunks` chunks that was computed in one go."""

    def __init__(self, edit: Edit, chunks: int) -> None:
        self.rows = 2 * TOKENS * (chunks + 8)
        self.costs, self.policy = CostTable.shipped(), Policy()
        self.held = FrozenResidency()
        live = [self.fresh(-i) for i in range(1, chunks + 1)]
        self.graph = after(WindowGraph(), self.planned(WindowGraph(), live), live, self.held)
        self.wanted = edit(self, live)
        self._plan = self.plan()

    def fresh(self, number: int) -> Wanted:
        chunk_id = digest([number], "planning")
        return Wanted(uid=number, chunk=Chunk(id=chunk_id, kind="user", length=TOKENS, span=TOKENS))

    def planned(self, graph: WindowGraph, wanted: Window) -> Plan:
        first = graph.placements[0].row if graph.placements else 0
        frame = Frame(start=first, capacity=self.rows, position=first)
        return make_plan(graph, wanted, self.held, self.costs, self.policy, frame, self.rows)

    def plan(self) -> Plan:
        return self.planned(self.graph, self.wanted)

    def check(self) -> None:
        check(self._plan, self.graph, self.wanted, self.held, self.rows)

    def after(self) -> WindowGraph:
        return after(self.graph, self._plan, self.wanted, self.held)


def append(case: Case, live: Window) -> Window:
    return [*live, case.fresh(1)]


def slide(case: Case, live: Window) -> Window:
    return live[1:]


def slide_behind_a_pinned_head(case: Case, live: Window) -> Window:
    return [live[0], *live[2:], case.fresh(1)]


def hole(case: Case, live: Window) -> Window:
    middle = len(live) // 2
    return live[:middle] + live[middle + 1 :]


def evict_and_recall(case: Case, live: Window) -> Window:
    """What left before comes back in the middle, while another leaves."""
    back = case.fresh(1)
    case.held = FrozenResidency({back.chunk.id: Resident(tokens=TOKENS, canonical=True)})
    middle = len(live) // 2
    return [*live[:5], *live[6:middle], back, *live[middle:]]


def reorder_of_three(case: Case, live: Window) -> Window:
    return [live[0], live[3], live[2], live[1], *live[4:]]


def first_to_the_end(case: Case, live: Window) -> Window:
    return [*live[1:], live[0]]


def last_to_the_front(case: Case, live: Window) -> Window:
    return [live[-1], *live[:-1]]


def timestamp_in_front(case: Case, live: Window) -> Window:
    return [case.fresh(1), *live[1:]]


def all_shuffled(case: Case, live: Window) -> Window:
    return [live[0], *Random(0).sample(live[1:], len(live) - 1), case.fresh(1)]


def every_tenth_recalled(case: Case, live: Window) -> Window:
    """As a canonical, in place of what stood there."""
    back = {i: case.fresh(i + 1) for i in range(5, len(live), 10)}
    held = Resident(tokens=TOKENS, canonical=True)
    case.held = FrozenResidency({w.chunk.id: held for w in back.values()})
    return [back.get(i, w) for i, w in enumerate(live)]


def second_half_loaded(case: Case, live: Window) -> Window:
    """All of the window is stored as it was and its second half has left; a chunk of the first half leaves as
    the other comes back."""
    residents, contexts, front = {}, {}, EMPTY
    for i, w in enumerate(live):
        residents[w.chunk.id] = Resident(tokens=TOKENS, canonical=True, conditioned=frozenset({front.key}))
        contexts[front.key] = Context(chunks=front, tokens=i * TOKENS)
        front = front.then(w.chunk.id)
    case.held = FrozenResidency(residents, contexts)
    first = live[: len(live) // 2]
    case.graph = after(case.graph, case.planned(case.graph, first), first, case.held)
    return [*live[:3], *live[4:]]


def on_half_the_kl(edit: Edit) -> Edit:
    """The same with half the budget that leaving all as it is would take: much has to be chosen."""

    def tight(case: Case, live: Window) -> Window:
        wanted = edit(case, live)
        case.policy = Policy(name="fast")
        left = case.planned(case.graph, wanted).predicted_kl
        case.policy = Policy(kl_budget=left / 2)
        return wanted

    tight.__name__ = f"{edit.__name__}_on_half_the_kl"
    return tight


EDITS: tuple[Edit, ...] = (
    append,
    slide,
    slide_behind_a_pinned_head,
    hole,
    evict_and_recall,
    reorder_of_three,
    first_to_the_end,
    last_to_the_front,
    timestamp_in_front,
    all_shuffled,
    every_tenth_recalled,
    second_half_loaded,
    *map(
        on_half_the_kl,
        (timestamp_in_front, reorder_of_three, all_shuffled, every_tenth_recalled, second_half_loaded),
    ),
)


def conversation(chunks: int, turns: int) -> WindowGraph:
    """A window that grew by as many chunks at every turn."""
    case = Case(append, 1)
    case.rows = 2 * TOKENS * (chunks + 8)
    wanted, graph = list[Wanted](), WindowGraph()
    for turn in range(turns):
        wanted += [case.fresh(i) for i in range(chunks * turn // turns, chunks * (turn + 1) // turns)]
        graph = after(graph, case.planned(graph, wanted), wanted, case.held)
    return graph


def measure(rounds: int, hardware: str) -> list[dict[str, Any]]:
    """One row per edit and size: milliseconds to plan, to check and to note what the plan leaves."""
    return [_row(edit, chunks, rounds, hardware) for chunks in CHUNKS for edit in EDITS]


def _row(edit: Edit, chunks: int, rounds: int, hardware: str) -> dict[str, Any]:
    case = Case(edit, chunks)
    try:
        case.check()
        correct = [p.uid for p in case.after().placements] == [w.uid for w in case.wanted]
    except PlanError:
        correct = False
    works: dict[str, Callable[[], object]] = {"plan": case.plan, "check": case.check, "after": case.after}
    # The least: what other processes do to a core, caches included, only adds to it.
    laps = alternate(works, 3 * rounds, clock=time.process_time)
    times = {f"{work}_ms": round(min(each), 3) for work, each in laps.items()}
    return {"op": edit.__name__, "chunks": chunks, **times, "correct": correct, "hardware": hardware}
