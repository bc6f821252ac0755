"""A session of the planner's tests whose plans are also carried out: by an executor, over a real backend.

Chunks are called by their names here as well, so that the plan is the golden one to the letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import torch
from agentkv_orchestrator import plan as ops
from agentkv_orchestrator.chunks import context_key, set_key
from agentkv_orchestrator.diff import Wanted
from agentkv_orchestrator.planner import make_plan
from agentkv_orchestrator.policy import Policy
from agentkv_orchestrator.residency import Context, FrozenResidency, removal_key
from agentkv_orchestrator.window import Placement

from agentkv.backends.base import Backend
from agentkv.cache import Run, WindowKV
from agentkv.executor import Executor
from agentkv.kv import KVBlock
from agentkv.media import Features, Media, Tokens
from agentkv.store.base import Key, Note, Origin, residency
from agentkv.store.memory import MemoryStore
from agentkv.store.shelf import Shelf
from agentkv.testing import same_bits
from tests.orchestrator.fake_machine import Session
from tests.runtime.test_mending import Exactly
from tests.tolerances import KV, kv_error

VOCABULARY = 60
HIDDEN = 72


class Noted:
    """A backend, and the rows that each of its verbs was called for."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.calls: list[tuple[str, int, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def read(self, kv: WindowKV, first: int, last: int) -> KVBlock:
        self.calls.append(("read", first, last - first))
        return self._backend.read(kv, first, last)

    def place(self, kv: WindowKV, row: int, block: KVBlock, patch: Any = None, position: Any = None) -> None:
        self.calls.append(("patch" if patch else "place", row, block.tokens))
        self._backend.place(kv, row, block, patch, position)

    def prefill(self, kv: WindowKV, runs: Sequence[Run], keep: int) -> torch.Tensor:
        self.calls += [("prefill", run.row, len(run.ids)) for run in runs]
        return self._backend.prefill(kv, runs, keep)

    def ask(self, kv: WindowKV, runs: Sequence[Run]) -> torch.Tensor:
        self.calls += [("prefill", run.row, len(run.ids)) for run in runs]
        return self._backend.ask(kv, runs)

    def canonical(self, ids: Any, media: Media | None = None) -> KVBlock:
        self.calls.append(("canonical", 0, len(ids)))
        return self._backend.canonical(ids, media)

    def form(self, conditioned: KVBlock, canonical: KVBlock) -> Any:
        self.calls.append(("form", int(conditioned.positions[0]), conditioned.tokens))
        return self._backend.form(conditioned, canonical)


@dataclass(frozen=True)
class Done:
    """What one plan did: what was called for, and the rows before and after it."""

    plan: ops.Plan
    calls: list[tuple[str, int, int]]
    before: dict[int, KVBlock]
    """By uid, as it was before."""

    def rows(self, *verbs: str) -> set[int]:
        """Rows that these verbs were called for."""
        return {row + i for verb, row, n in self.calls if verb in verbs for i in range(n)}

    def tokens(self, verb: str) -> int:
        return sum(n for name, _, n in self.calls if name == verb)


class Stage(Session):
    """A `Session` beside a real window: whatever it does is done twice."""

    def __init__(self, backend: Backend, capacity: int = 1024, max_rows: int = 4096) -> None:
        super().__init__(capacity, max_rows)
        self.backend, self.store = Noted(backend), MemoryStore()
        self.shelf = Shelf(self.store, lambda n: Origin(self.tokens_of(n).ids, b"", "stage"), "stage")
        self.executor = Executor(self.backend, self.shelf, self.tokens_of, Exactly())
        self.kv = backend.new_kv(capacity)
        self.done: Done | None = None

    def tokens_of(self, name: str) -> Tokens:
        """Token ids that follow from the name; of an image with the positions that its span says."""
        chunk = self.seen[name]
        draw = np.random.default_rng(crc32(name.encode()))
        ids = draw.integers(3, VOCABULARY, chunk.length, dtype=np.int64)
        if chunk.span == chunk.length:
            return Tokens(ids)
        offsets = torch.arange(chunk.length) * chunk.span // chunk.length
        nothing = torch.zeros(chunk.length, dtype=torch.bool)
        features = Features(torch.zeros(0, HIDDEN, dtype=torch.float64))
        return Tokens(ids, Media("image", name.encode(), offsets[None], chunk.span, nothing, features))

    def held(self) -> FrozenResidency:
        return residency(self.store, {name: chunk.length for name, chunk in self.seen.items()})

    def go(self, wanted: Sequence[Wanted], policy: str | Policy = "balanced", headroom: int = 0) -> ops.Plan:
        """Over a store with tensors the plan is the same, and the executor does what it says."""
        expected = self.plan(wanted, policy, headroom)
        plan = make_plan(
            self.graph,
            wanted,
            self.held(),
            self.costs,
            Policy.parse(policy),
            self.frame,
            self.max_rows,
            headroom,
        )
        assert plan == expected
        before = {p.uid: self.block(p) for p in self.graph.placements}
        self.backend.calls.clear()
        self.executor.execute(plan, self.kv, notes=self._notes(plan))
        self.done = Done(plan, list(self.backend.calls), before)
        super().go(wanted, policy, headroom)
        assert (self.kv.start, self.kv.capacity) == (self.frame.start, self.frame.capacity)
        return plan

    def settle(self) -> ops.Plan:
        plan = super().settle()
        self.backend.calls.clear()
        for op in plan.ops:
            self.executor.idle(op, self.kv)
        self.done = Done(plan, list(self.backend.calls), {})
        return plan

    def hold_canonical(self, name: str, tokens: int = 100) -> None:
        super().hold_canonical(name, tokens)
        if name not in self.seen:
            self.place(name, tokens)
            self._uid -= 1  # only to say what the name stands for
        self.shelf.put(Key("canonical", name), self.backend.canonical(*self.tokens_of(name)))

    def forget_copies(self) -> None:
        super().forget_copies()
        for key in tuple(self.store.keys()):
            if key.kind == "conditioned":
                self.store.drop(key)

    def learn_orbit(self, name: str, antecedents: Sequence[str]) -> None:
        """Formed from one order only: that of the edit to come, where the two first documents swap."""
        super().learn_orbit(name, antecedents)
        first, *rest = antecedents
        block = self.computed(name, [first, *reversed(rest)])
        canonical = self.backend.canonical(*self.tokens_of(name))
        self.shelf.put(Key("canonical", name), canonical)
        delta = self.backend.deficit(block, canonical)
        self._put_patch(Key("orbit", name, set_key(antecedents)), delta, "orbit", canonical)

    def learn_removal(self, name: str, before: Sequence[str], left: Sequence[str]) -> None:
        super().learn_removal(name, before, left)
        base = self.computed(name, before)
        delta = self.backend.deficit(self.computed(name, left), base)
        key = Key("removal", name, removal_key(context_key(before), context_key(left)))
        self._put_patch(key, delta, "removal", base)

    def _put_patch(self, key: Key, delta: Any, kind: Any, base: KVBlock) -> None:
        recipe = getattr(self.backend, "recipe", None)
        at = int(base.positions[0])
        patch = recipe.form(delta, kind, at) if recipe else self.backend.form(base, base)
        self.shelf.put(key, patch)

    def computed(self, name: str, front: Iterable[str]) -> KVBlock:
        """KV of a chunk behind these, from one forward at the front of a window of its own."""
        return self.prefilled([*front, name])[-1]

    def prefilled(self, names: Sequence[str], row: int = 0, position: int = 0) -> list[KVBlock]:
        """KV of all these chunks, from one forward."""
        kv = self.backend.new_kv(row + sum(self.seen[name].length for name in names))
        runs: list[Run] = []
        for name in names:
            ids, media = self.tokens_of(name)
            runs.append(Run(row, ids, position, media))
            row, position = row + len(ids), position + self.seen[name].span
        kv.start, kv.end = runs[0].row, row
        self.backend._backend.prefill(kv, runs, keep=0)
        return [kv.view(run.row, run.stop).clone() for run in runs]

    def block(self, p: Placement) -> KVBlock:
        """A copy of the rows of a placement."""
        return self.kv.view(p.row, p.stop).clone()

    def _notes(self, plan: ops.Plan) -> dict[int, Note]:
        stashed = [self.graph.get(op.uid) for op in plan.ops if isinstance(op, ops.Stash)]
        return {
            p.uid: Note(p.hearsay, Context(chunks=p.antecedents, tokens=p.antecedent_tokens))
            for p in stashed
            if p is not None
        }

    def assert_did_what_the_plan_says(self) -> None:
        """Rows by verb, positions, and that what is kept was not touched."""
        assert self.done is not None
        plan, placing = (
            self.done.plan,
            {op.uid: op for op in self.done.plan.ops if isinstance(op, ops.Placing)},
        )
        corrected = {op.uid: op for op in plan.ops if isinstance(op, ops.Applying)}
        by = _rows_by_kind(plan)

        def rows_of(*kinds: type) -> set[int]:
            return _rows(placing[uid] for uid, op in corrected.items() if isinstance(op, kinds))

        removed, estimated = rows_of(ops.ApplyRemoval), rows_of(ops.EstimatePatch)
        assert self.done.rows("patch") == rows_of(ops.ApplyPatch, ops.ApplyOrbit) | removed | estimated
        assert self.done.rows("place", "patch") == by["rotate"] | by["load"] | by["place_canonical"] | removed
        computed = self.done.rows("prefill") - estimated
        assert by["prefill"] <= computed
        for uid, op in corrected.items():
            if isinstance(op, ops.Repair):
                assert len(computed & _rows([placing[uid]])) == op.rows
                computed -= _rows([placing[uid]])
        assert computed == by["prefill"]
        assert self.done.rows("read") >= by["stash"]
        assert self.done.tokens("canonical") == sum(
            o.tokens for o in plan.ops if isinstance(o, ops.FormCanonical)
        )
        assert self.done.tokens("form") >= sum(o.tokens for o in plan.ops if isinstance(o, ops.FormPatch))
        for op in placing.values():
            assert int(self.kv.positions[op.row]) == op.position
            if isinstance(op, ops.Keep) and op.uid not in corrected:
                p = self.graph.get(op.uid)
                assert p is not None
                assert same_bits(self.block(p), self.done.before[op.uid])

    def assert_as_exact_as_the_graph_says(self, everything: bool = False) -> int:
        """What is exact for its place is what a re-prefill gives; how many placements that were.

        everything: all of them have to be. A patch of full rank for the context in front counts as exact.
        """
        assert self.done is not None
        names = [p.chunk.id for p in self.graph.placements]
        truth = self.prefilled(names, self.frame.start, self.frame.position)
        stale = set(self.graph.stale())
        whole = {op.uid for op in self.done.plan.ops if isinstance(op, ops.Applying) and op.op != "repair"}
        found = 0
        for p, want in zip(self.graph.placements, truth, strict=True):
            exact = (p.exact and p.hearsay == 0) or p.uid in whole
            if everything or (exact and p.uid not in stale and not p.clean):
                got = self.block(p)
                assert torch.equal(got.positions, want.positions)
                for a, b in zip(got.slots, want.slots, strict=True):
                    assert kv_error(a, b) <= KV[a.dtype], p
                found += 1
        return found


def _rows(placed: Iterable[ops.Placing]) -> set[int]:
    return {op.row + i for op in placed for i in range(op.tokens)}


def _rows_by_kind(plan: ops.Plan) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {name: set() for name in ops.NAMES.values()}
    for op in plan.ops:
        row = getattr(op, "row", None)
        if row is not None:
            found[op.op] |= {row + i for i in range(op.tokens)}
    return found


def staged(backend: Callable[[], Backend]) -> Callable[[int, int], Stage]:
    """Sessions over fresh backends, from capacity and max_rows."""
    return lambda capacity, max_rows: Stage(backend(), capacity, max_rows)
