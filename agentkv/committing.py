"""From what a window is asked to hold to rows that hold it: plan, check, execute, and plan again if the
store has changed in between."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from agentkv_orchestrator.check import check
from agentkv_orchestrator.diff import Wanted
from agentkv_orchestrator.errors import CapacityError
from agentkv_orchestrator.placement import arranged
from agentkv_orchestrator.plan import Plan, Stash
from agentkv_orchestrator.planner import after
from agentkv_orchestrator.residency import Context, FrozenResidency
from agentkv_orchestrator.window import Frame, WindowGraph

from agentkv.errors import NothingStored, TooLong
from agentkv.executor import Outcome
from agentkv.handles import Content
from agentkv.store.base import Key, Note, residency

if TYPE_CHECKING:
    from agentkv.window import Window


def planned(window: Window, held: FrozenResidency, headroom: int) -> tuple[Plan, list[Wanted]]:
    """What a commit would do with what is noted, and the window that it is for: order-free messages stand
    where they cost least. Raises TooLong when it does not fit."""
    window.require_open()
    rows = window.engine.layout.max_positions
    given = (held, window.engine.costs, window.policy, frame(window), rows, headroom)
    try:
        return arranged(window.graph, window.content.wanted(), *given)
    except CapacityError as error:
        raise TooLong(error.got, error.expected, error.do) from error


def carry_out(window: Window, headroom: int, keep: int) -> tuple[Plan, Outcome, WindowGraph, Content]:
    """Plan, check and execute what is noted; the graph that this leaves, and the messages as they stand."""
    missing = set[Key]()
    while True:
        since, holding = time.perf_counter(), held(window, missing)
        plan, wanted = planned(window, holding, headroom)
        check(plan, window.graph, wanted, holding, window.engine.layout.max_positions)
        planning = (time.perf_counter() - since) * 1e3
        try:
            outcome = window.engine.executor.execute(plan, window.kv, keep, notes(window, plan))
        except NothingStored as error:
            # Dropped since the plan was made, or not to be read: the next plan does without.
            if missing.issuperset(error.keys):
                raise
            missing.update(error.keys)
            continue
        outcome.ms["plan"] = planning
        graph = after(window.graph, plan, wanted, holding)
        return plan, outcome, graph, window.content.as_placed(wanted)


def frame(window: Window) -> Frame:
    """Where the live rows stand."""
    first = window.graph.placements[0] if window.graph.placements else None
    position = first.position if first else window.kv.start
    return Frame(start=window.kv.start, capacity=window.kv.capacity, position=position)


def held(window: Window, without: Collection[Key] = frozenset()) -> FrozenResidency:
    """What the store has for the chunks that stand here or are wanted. without: keys found missing."""
    chunks = {chunk.id: chunk.length for e in window.content.live() for _, chunk in e.parts}
    chunks |= {p.chunk.id: p.chunk.length for p in window.graph.placements}
    return residency(window.engine.store, chunks, without)


def notes(window: Window, plan: Plan) -> dict[int, Note]:
    """By uid, what to keep beside the KV that ``plan`` stashes."""
    stashed = (window.graph.get(op.uid) for op in plan.ops if isinstance(op, Stash))
    return {
        p.uid: Note(p.hearsay, Context(chunks=p.antecedents, tokens=p.antecedent_tokens))
        for p in stashed
        if p is not None
    }
