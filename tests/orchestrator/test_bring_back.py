"""A wrong eviction costs what the plan said it would."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from agentkv_orchestrator.bring_back import taken_back, with_bring_back
from agentkv_orchestrator.diff import Wanted
from agentkv_orchestrator.eviction import LRU
from agentkv_orchestrator.plan import Evict, Plan
from agentkv_orchestrator.planner import after, make_plan
from agentkv_orchestrator.policy import Policy
from agentkv_orchestrator.simulation.shape import Shape
from agentkv_orchestrator.simulation.shelf import Shelf
from agentkv_orchestrator.window import Frame, WindowGraph
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import COSTS, chunk, edits, policies, seeds

ROWS = 4096


class Bench:
    """A window over a store that keeps everything, notes included."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy, self.costs = policy or Policy(), COSTS
        self.shelf = Shelf(1 << 50, LRU(), COSTS, Shape.shipped())
        self.graph, self.frame = WindowGraph(), Frame(start=0, capacity=ROWS, position=0)
        self.wanted: list[Wanted] = []
        self._uid = 0

    def place(self, name: str, length: int) -> Wanted:
        self._uid += 1
        return Wanted(uid=self._uid, chunk=chunk(name, length))

    def plan(self, wanted: Sequence[Wanted]) -> Plan:
        return make_plan(self.graph, wanted, self.shelf, self.costs, self.policy, self.frame, ROWS)

    def promised(self, wanted: Sequence[Wanted]) -> Plan:
        return with_bring_back(
            self.plan(wanted), self.graph, wanted, self.shelf, self.costs, self.policy, ROWS
        )

    def go(self, wanted: Sequence[Wanted]) -> None:
        plan = self.plan(wanted)
        before, self.graph = self.graph, after(self.graph, plan, wanted, self.shelf)
        self.shelf.obey(plan, before)
        self.wanted, self.frame = list(wanted), plan.frame


def spent(plan: Plan, uid: int) -> tuple[float, float]:
    ops = [op for op in plan.ops if op.uid == uid]
    return round(sum(op.ms for op in ops), 4), round(sum(op.kl for op in ops), 6)


def edited(bench: Bench, edit: str, which: int, where: int) -> list[Wanted]:
    wanted = bench.wanted
    if edit == "evict":
        return [w for i, w in enumerate(wanted) if i != which % len(wanted)]
    if edit == "move":
        moved = wanted[which % len(wanted)]
        rest = [w for w in wanted if w is not moved]
        return [*rest[: where % len(wanted)], moved, *rest[where % len(wanted) :]]
    return [*wanted, bench.place(f"c{which % 12}", 5 + which % 12)]


@settings(max_examples=100, deadline=None)
@given(before=edits, seed=seeds, policy=policies, leave=st.integers(1, 4))
def test_undoing_costs_what_was_promised(
    before: list[tuple[str, int, int]], seed: int, policy: Policy, leave: int
) -> None:
    """After any history: what left is put back at the milliseconds and the KL that its eviction named."""
    draw, bench = Random(seed), Bench(policy)
    for edit, which, where in before:
        bench.go(edited(bench, edit if bench.wanted else "append", which, where))
    whole = list(bench.wanted)
    gone = set(draw.sample(range(len(whole)), min(leave, len(whole))))
    fewer = [w for i, w in enumerate(whole) if i not in gone]
    said = {
        op.uid: (op.bring_back_ms, op.bring_back_kl)
        for op in bench.promised(fewer).ops
        if isinstance(op, Evict)
    }
    assert set(said) == {whole[i].uid for i in gone}
    bench.go(fewer)
    back = bench.plan(whole)
    assert {uid: spent(back, uid) for uid in said} == said


def test_an_eviction_of_exact_kv_is_a_load_away() -> None:
    bench = Bench()
    a, b = bench.place("a", 40), bench.place("b", 40)
    bench.go([a, b])
    plan = bench.promised([a])
    (evicted,) = (op for op in plan.ops if isinstance(op, Evict))
    assert (evicted.bring_back_ms, evicted.bring_back_kl) == (bench.costs.time("load", 40), 0.0)


def test_without_a_stash_it_costs_a_prefill() -> None:
    bench = Bench(Policy(stash=False))
    a, b = bench.place("a", 40), bench.place("b", 40)
    bench.go([a, b])
    plan = bench.promised([a])
    (evicted,) = (op for op in plan.ops if isinstance(op, Evict))
    assert evicted.bring_back_ms == round(bench.costs.time("prefill", 40, 40), 4)


def test_a_plan_without_evictions_is_left_as_it_is() -> None:
    bench = Bench()
    a = bench.place("a", 40)
    plan = bench.plan([a])
    assert bench.promised([a]) == plan
    bench.go([a])
    plan = bench.plan([a])
    back = taken_back(plan, bench.graph, [a], bench.shelf, bench.costs, bench.policy, ROWS)
    assert back.predicted_ms == 0


def test_only_a_promise_is_written() -> None:
    bench = Bench()
    a = bench.place("a", 40)
    bench.go([a])
    assert "bring_back" not in bench.plan([]).to_json()
    text = bench.promised([]).to_json()
    assert "bring_back_ms" in text
    assert Plan.from_json(text) == bench.promised([])
