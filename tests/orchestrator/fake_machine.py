"""A window whose KV are integers: executes plans the slow, obvious way, row by row.

A cell knows whose token it holds, the position its chunk stands at, what it was conditioned on and `bits`, a
stand-in for the tensor itself: bits are equal only where a real machine would have equal bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from agentkv_orchestrator import plan as ops
from agentkv_orchestrator.check import check
from agentkv_orchestrator.chunks import Chunk, context_key, set_key
from agentkv_orchestrator.diff import Wanted
from agentkv_orchestrator.planner import after, make_plan
from agentkv_orchestrator.policy import Policy
from agentkv_orchestrator.residency import Context, FrozenResidency, Resident, removal_key
from agentkv_orchestrator.settle import plan_refresh, plan_settle
from agentkv_orchestrator.window import Frame, WindowGraph

from tests.strategies import COSTS, chunk


@dataclass(frozen=True)
class Cell:
    chunk: str
    index: int
    position: int
    seen: tuple[str, ...]
    bits: int

    def turned(self, position: int) -> Cell:
        """The cell at another position; a rotation by nothing is a copy."""
        if position == self.position:
            return self
        return replace(self, position=position, bits=hash(("turned", self.bits, position)))


@dataclass
class Store:
    canonical: set[str] = field(default_factory=set)
    conditioned: dict[tuple[str, str], list[Cell]] = field(default_factory=dict)
    patches: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    orbits: set[tuple[str, str]] = field(default_factory=set)
    removals: set[tuple[str, str]] = field(default_factory=set)
    lengths: dict[str, int] = field(default_factory=dict)

    def residency(self) -> FrozenResidency:
        sizes = {name: len(cells) for (name, _), cells in self.conditioned.items()}
        contexts = {key: cells[0].seen for (_, key), cells in self.conditioned.items() if cells}
        contexts |= {key: seen for (_, key), seen in self.patches.items()}
        names = {key[0] for key in (*self.conditioned, *self.patches, *self.orbits, *self.removals)}
        return FrozenResidency(
            {
                name: Resident(
                    tokens=sizes.get(name, 0),
                    canonical=name in self.canonical,
                    conditioned=frozenset(key for c, key in self.conditioned if c == name),
                    patches=frozenset(key for c, key in self.patches if c == name),
                    orbits=frozenset(key for c, key in self.orbits if c == name),
                    removals=frozenset(key for c, key in self.removals if c == name),
                )
                for name in sorted(names | self.canonical)
            },
            {
                key: Context(chunks=seen, tokens=sum(self.lengths[name] for name in seen))
                for key, seen in contexts.items()
                if key == context_key(seen) and self.lengths.keys() >= set(seen)
            },
        )


class Machine:
    """Rows and a store; `run` does what an executor does."""

    def __init__(self) -> None:
        self.rows: dict[int, Cell] = {}
        self.written = range(0)
        self.store = Store()

    def run(self, plan: ops.Plan, fronts: dict[int, tuple[str, ...]]) -> None:
        """fronts: by uid, the chunk ids that are wanted in front; what a patch makes of its base."""
        before = dict(self.rows)
        self.rows = {}  # so that a row nobody wrote cannot pass for a kept one
        for op in plan.ops:
            self._one(op, plan.frame.start, before, fronts)

    def _one(
        self, op: ops.Op, start: int, before: dict[int, Cell], fronts: dict[int, tuple[str, ...]]
    ) -> None:
        match op:
            case ops.Stash():
                self.store.conditioned[op.chunk, op.context] = [before[op.row + i] for i in range(op.tokens)]
            case ops.Keep():
                self._write(op, [before[op.row + i] for i in range(op.tokens)])
            case ops.Rotate():
                moved = [before[op.from_row + i] for i in range(op.tokens)]
                assert {cell.position for cell in moved} == {op.from_position}
                self._write(op, moved)
            case ops.Load():
                self._write(op, self.store.conditioned[op.chunk, op.context])
            case ops.PlaceCanonical():
                assert op.chunk in self.store.canonical
                self._write(op, canonical(op.chunk, op.tokens, op.position))
            case ops.ApplyPatch():
                self._amend(self.store.patches[op.chunk, op.context])
            case ops.ApplyOrbit():
                assert (op.chunk, op.antecedent_set) in self.store.orbits
                self._amend(fronts[op.uid])
            case ops.ApplyRemoval():
                assert (op.chunk, removal_key(op.before, op.after)) in self.store.removals
                self._amend(fronts[op.uid])
            case ops.EstimatePatch():
                assert op.rows <= op.tokens
                self._amend(fronts[op.uid])
            case ops.Repair():
                assert op.rows <= op.tokens
                for row in self.written:
                    self.rows[row] = replace(self.rows[row], bits=hash(("repaired", self.rows[row].bits)))
            case ops.Prefill():
                self.store.lengths[op.chunk] = op.tokens
                front = [self.rows[row] for row in range(start, op.row)]
                self._write(op, computed(op.chunk, op.tokens, op.position, front))
            case ops.FormCanonical():
                self.store.canonical.add(op.chunk)
            case ops.FormPatch():
                assert op.chunk in self.store.canonical
                self.store.patches[op.chunk, op.context] = self.store.conditioned[op.chunk, op.context][
                    0
                ].seen

    def _write(self, op: ops.Placing, cells: Sequence[Cell]) -> None:
        self.written = range(op.row, op.row + len(cells))
        for at, cell in zip(self.written, cells, strict=True):
            assert at not in self.rows, f"row {at} is written twice"
            assert not isinstance(op, ops.Keep) or cell.position == op.position
            self.rows[at] = cell.turned(op.position)

    def _amend(self, seen: tuple[str, ...]) -> None:
        """Patch the rows that the op before has written."""
        for row in self.written:
            cell = self.rows[row]
            self.rows[row] = replace(cell, seen=seen, bits=hash(("patched", cell.bits)))


def computed(name: str, tokens: int, position: int, front: Sequence[Cell]) -> list[Cell]:
    """What a forward at `position` behind these cells gives."""
    seen = tuple(cell.chunk for cell in front if cell.index == 0)
    bits = hash((name, position, tuple(cell.bits for cell in front)))
    return [Cell(name, i, position, seen, bits) for i in range(tokens)]


def canonical(name: str, tokens: int, position: int) -> list[Cell]:
    return [Cell(name, i, position, (), hash(("canonical", name, position))) for i in range(tokens)]


class Session:
    """A window on a machine: plans, checks, runs and compares after every edit."""

    def __init__(self, capacity: int = 256, max_rows: int = 1024) -> None:
        self.machine = Machine()
        self.graph = WindowGraph()
        self.frame = Frame(start=0, capacity=capacity)
        self.max_rows = max_rows
        self.wanted: list[Wanted] = []
        self.costs = COSTS
        self.seen: dict[str, Chunk] = {}
        self._uid = 0

    def place(self, name: str, length: int, span: int | None = None) -> Wanted:
        """A wanted placement under a fresh uid, in no window yet."""
        return self.place_chunk(chunk(name, length, span))

    def place_chunk(self, content: Chunk) -> Wanted:
        self._uid += 1
        self.seen[content.id] = content
        return Wanted(uid=self._uid, chunk=content)

    def plan(
        self, wanted: Sequence[Wanted], policy: str | Policy = "balanced", headroom: int = 0
    ) -> ops.Plan:
        return make_plan(
            self.graph,
            wanted,
            self.machine.store.residency(),
            self.costs,
            Policy.parse(policy),
            self.frame,
            self.max_rows,
            headroom,
        )

    def go(self, wanted: Sequence[Wanted], policy: str | Policy = "balanced", headroom: int = 0) -> ops.Plan:
        """Plan, check, run; then the rows have to hold what was wanted, and the graph what the rows hold."""
        return self.carry_out(self.plan(wanted, policy, headroom), wanted, self.machine.store.residency())

    def carry_out(self, plan: ops.Plan, wanted: Sequence[Wanted], held: FrozenResidency) -> ops.Plan:
        """Check it and run it."""
        check(plan, self.graph, wanted, held, self.max_rows)
        ids = tuple(w.chunk.id for w in wanted)
        self.machine.run(plan, {w.uid: ids[:i] for i, w in enumerate(wanted)})
        self.graph = after(self.graph, plan, wanted, held)
        self.frame, self.wanted = plan.frame, list(wanted)
        self._compare()
        return plan

    def settling(self) -> ops.Plan:
        """The idle work there is."""
        return plan_settle(self.graph, self.machine.store.residency(), Policy(), self.costs)

    def settle(self) -> ops.Plan:
        plan = self.settling()
        rows = self.machine.rows
        self.machine.run(plan, {})
        self.machine.rows = rows
        return plan

    def refresh(self, ms: float) -> ops.Plan | None:
        """Idle work on the window; the rows have to hold what they held."""
        held = self.machine.store.residency()
        plan = plan_refresh(
            self.graph, self.wanted, held, self.costs, Policy(), self.frame, self.max_rows, ms
        )
        return plan and self.carry_out(plan, self.wanted, held)

    def hold_canonical(self, name: str, tokens: int = 100) -> None:
        """The store has the canonical of a chunk of so many tokens."""
        self.machine.store.canonical.add(name)

    def forget_copies(self) -> None:
        """The store drops all conditioned KV, not the patches."""
        self.machine.store.conditioned.clear()

    def learn_orbit(self, name: str, antecedents: Sequence[str]) -> None:
        self.machine.store.canonical.add(name)
        self.machine.store.orbits.add((name, set_key(antecedents)))

    def learn_removal(self, name: str, before: Sequence[str], left: Sequence[str]) -> None:
        self.machine.store.removals.add((name, removal_key(context_key(before), context_key(left))))

    def _compare(self) -> None:
        row, position = self.frame.start, self.frame.position
        for w, p in zip(self.wanted, self.graph.placements, strict=True):
            assert (p.uid, p.chunk, p.row, p.clean) == (w.uid, w.chunk, row, w.clean)
            assert p.position == position
            for i in range(w.chunk.length):
                cell = self.machine.rows[row]
                assert (cell.chunk, cell.index, cell.position) == (w.chunk.id, i, position)
                assert cell.seen == tuple(p.antecedents)
                row += 1
            position += w.chunk.span
        assert position <= self.max_rows
        assert row == self.frame.start + len(self.machine.rows) <= self.frame.capacity <= self.max_rows
