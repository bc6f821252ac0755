"""Idle work that makes later edits cheap: patches for orders and departures that have not happened yet."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from agentkv_orchestrator.check import check
from agentkv_orchestrator.chunks import Chunk, context_key, set_key
from agentkv_orchestrator.plan import Plan
from agentkv_orchestrator.planner import after
from agentkv_orchestrator.residency import removal_key
from agentkv_orchestrator.settle import plan_refresh, plan_settle
from agentkv_orchestrator.window import Placement

from agentkv import rules
from agentkv.cache import Run
from agentkv.committing import frame, held, notes
from agentkv.errors import InvalidInput, NothingStored
from agentkv.handles import Handle
from agentkv.kv import KVBlock
from agentkv.patches import OrbitMean
from agentkv.store.base import Key, Note
from agentkv.undo import recorded

if TYPE_CHECKING:
    from agentkv.window import Window


def settle(window: Window, ms: float | None) -> Plan:
    """See `Window.settle`."""
    engine, start = window.engine, time.perf_counter()
    refreshed = None if ms is None else _refresh(window, ms)
    left = None if ms is None else ms - (refreshed.predicted_ms if refreshed else 0.0)
    plan = plan_settle(window.graph, engine.residency(), window.policy, engine.costs, left)
    for op in plan.ops:
        with suppress(NothingStored):  # gone since the plan was made: nothing left to do for it
            engine.executor.idle(op, window.kv)
    idle_ms = window.usage.idle_ms + (time.perf_counter() - start) * 1e3
    window.usage = replace(window.usage, idle_ms=idle_ms)
    return refreshed.and_then(plan) if refreshed else plan


def _refresh(window: Window, ms: float) -> Plan | None:
    """Carry out the refresh that is worth most within ``ms``."""
    wanted, holding, rows = window.committed.wanted(), held(window), window.engine.layout.max_positions
    plan = plan_refresh(
        window.graph, wanted, holding, window.engine.costs, window.policy, frame(window), rows, ms
    )
    if plan is None:
        return None
    check(plan, window.graph, wanted, holding, rows)
    window.engine.executor.execute(plan, window.kv, 0, notes(window, plan))
    window.graph, window.last_plan = after(window.graph, plan, wanted, holding), plan
    window.past = recorded(window, window.past, window.committed, window.committed)
    return plan


def learn_orders(window: Window, handles: Sequence[Handle], orders: int, seed: int) -> int:
    """Run permutations of ``handles`` behind what stands in front of them; store one orbit patch per
    (chunk, set).

    The mean deficit over the orders of a set of antecedents serves every order of that set (Kamera §5).
    Raises InvalidInput unless the handles are neighbours in the window.
    """
    engine, groups = window.engine, [rules.live(window.content, h).parts for h in handles]
    placed = _neighbours(window, [uid for group in groups for uid, _ in group])
    front = window.graph.placements[: window.graph.placements.index(placed[0])]
    first, means = placed[0], dict[Key, OrbitMean]()
    for permutation in _permutations(len(groups), orders, seed):
        chunks = [chunk for i in permutation for _, chunk in groups[i]]
        for chunk, seen, block in _run(window, front, first, chunks):
            delta = engine.backend.deficit(block, _canonical(window, chunk.id))
            means.setdefault(Key("orbit", chunk.id, set_key(seen)), OrbitMean()).add(delta)
    for key, mean in means.items():
        at = int(_canonical(window, key.chunk).positions[0])
        note = Note(window.error_in_front(first.row))
        engine.shelf.put(key, engine.recipe.form(mean.mean, "orbit", at), note)
    return len(means)


def learn_removal(window: Window, handle: Handle) -> int:
    """Run what stands behind ``handle`` without it; store Δ = KV(B|A∖X) - R(δ) KV(B|A) per chunk B."""
    engine, leaving = window.engine, {uid for uid, _ in rules.live(window.content, handle).parts}
    placements = window.graph.placements
    first = next(i for i, p in enumerate(placements) if p.uid in leaving)
    behind = [p for p in placements[first:] if p.uid not in leaving]
    runs = _run(window, placements[:first], placements[first], [p.chunk for p in behind])
    for placement, (chunk, seen, block) in zip(behind, runs, strict=True):
        live = engine.backend.read(window.kv, placement.row, placement.stop)
        patch = engine.recipe.form(engine.backend.deficit(block, live), "removal", placement.position)
        context = removal_key(context_key(placement.antecedents), context_key(seen))
        note = Note(window.error_in_front(placements[first].row))
        engine.shelf.put(Key("removal", chunk.id, context), patch, note)
    return len(behind)


def _run(
    window: Window, front: Sequence[Placement], place: Placement, chunks: Sequence[Chunk]
) -> Iterator[tuple[Chunk, tuple[str, ...], KVBlock]]:
    """Prefill ``chunks`` where ``place`` stands behind the live rows of ``front``, aside; yields (chunk,
    antecedents, its KV)."""
    if not chunks:
        return
    backend, start = window.engine.backend, window.kv.start
    at, position = place.row - start, place.position - int(window.kv.positions[start])
    aside, runs = backend.new_kv(at + sum(c.length for c in chunks)), list[Run]()
    if at:
        backend.place(aside, 0, window.kv.view(start, place.row))  # turned, as the rows aside start at 0
    for chunk in chunks:
        ids, media = window.engine.tokens(chunk.id)
        runs.append(Run(at, ids, position, media))
        at, position = at + chunk.length, position + chunk.span
    aside.end = at
    backend.prefill(aside, runs, keep=0)
    seen = [p.chunk.id for p in front]
    for chunk, run in zip(chunks, runs, strict=True):
        yield chunk, tuple(seen), aside.view(run.row, run.stop)
        seen.append(chunk.id)


def _canonical(window: Window, chunk: str) -> KVBlock:
    """The chunk's canonical; formed and stored when it is missing."""
    engine, key = window.engine, Key("canonical", chunk)
    found = engine.shelf.get(key)
    if found is not None and isinstance(found.entry, KVBlock):
        return found.entry.to(window.kv.device)
    block = engine.backend.canonical(*engine.tokens(chunk))
    engine.shelf.put(key, block)
    return block


def _neighbours(window: Window, uids: list[int]) -> list[Placement]:
    """The placements of ``uids`` in window order. Raises InvalidInput when something stands between them."""
    wanted = set(uids)
    placed = [p for p in window.graph.placements if p.uid in wanted]
    together = placed and placed[-1].stop - placed[0].row == sum(p.chunk.length for p in placed)
    together = together and len(placed) == len(uids)
    if not together:
        raise InvalidInput(
            got="messages with others between them, or one twice",
            expected="neighbours in the window, at least one",
            do="pass a run of messages, or move them together first",
        )
    return placed


def _permutations(count: int, most: int, seed: int) -> list[tuple[int, ...]]:
    """All orders of ``count`` things, or ``most`` different random ones when there are more."""
    if math.factorial(count) <= most:
        return list(itertools.permutations(range(count)))
    draw, found = random.Random(seed), {tuple(range(count))}
    while len(found) < most:
        found.add(tuple(draw.sample(range(count), count)))
    return sorted(found)
