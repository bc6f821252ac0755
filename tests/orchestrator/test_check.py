"""Every rule of `check` is broken by a plan that is right otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from agentkv_orchestrator import check as rules
from agentkv_orchestrator.chunks import context_key
from agentkv_orchestrator.errors import PlanError
from agentkv_orchestrator.plan import NAMES, ApplyPatch, FormCanonical, FormPatch, Op, PlaceCanonical, Plan
from agentkv_orchestrator.policy import Policy
from agentkv_orchestrator.window import Frame

from tests.orchestrator.fake_machine import Session
from tests.strategies import MENDING

Break = Callable[[Plan], Plan]


def one(kind: str, **change: object) -> Break:
    """Change the first op of a kind."""

    def apply(plan: Plan) -> Plan:
        at = next(i for i, op in enumerate(plan.ops) if op.op == kind)
        ops = [*plan.ops[:at], replace(plan.ops[at], **change), *plan.ops[at + 1 :]]
        return plan.model_copy(update={"ops": tuple(ops)})

    return apply


def reorder(order: Callable[[list[Op]], list[Op]]) -> Break:
    return lambda plan: plan.model_copy(update={"ops": tuple(order(list(plan.ops)))})


def drop(kind: str) -> Break:
    return reorder(lambda ops: [op for op in ops if op.op != kind])


def twice(kind: str) -> Break:
    return reorder(lambda ops: [copy for op in ops for copy in [op] * (1 + (op.op == kind))])


def overall(**change: object) -> Break:
    return lambda plan: plan.model_copy(update=change)


def patched(op: Op) -> list[Op]:
    """The clean view's canonical, with a patch on top."""
    if not (isinstance(op, PlaceCanonical) and op.chunk == "b"):
        return [op]
    return [op, ApplyPatch(uid=op.uid, chunk="b", tokens=10, context="any", reason="")]


BREAKS: list[tuple[str, Break]] = [
    ("same_revision", overall(base_revision=99)),
    ("placed_once", drop("keep")),
    ("placed_once", twice("rotate")),
    ("placed_once", one("prefill", uid=98)),
    ("evicted_once", drop("evict")),
    ("evicted_once", twice("evict")),
    ("right_chunks", one("rotate", chunk="other")),
    ("right_chunks", one("load", tokens=11)),
    ("rows_contiguous", one("place_canonical", row=0)),
    ("rows_contiguous", overall(frame=Frame(start=1, capacity=256))),
    ("rows_exist", overall(frame=Frame(start=0, capacity=50))),
    ("rows_exist", overall(frame=Frame(start=0, capacity=9999))),
    ("sources_live", one("rotate", from_row=7)),
    ("sources_live", one("stash", row=7)),
    ("sources_live", one("evict", row=7)),
    ("sources_live", one("stash", uid=97)),
    ("stored", one("load", context="nowhere")),
    ("stored", one("apply_patch", context="nowhere")),
    ("stored", one("apply_orbit", antecedent_set="nobody")),
    ("stored", one("apply_removal", before="nothing")),
    ("stored", drop("form_canonical")),
    ("applied_to_its_base", reorder(lambda ops: sorted(ops, key=lambda op: op.op == "apply_patch"))),
    ("applied_to_its_base", reorder(lambda ops: sorted(ops, key=lambda op: op.op != "apply_removal"))),
    ("right_context", one("load", context="elsewhere")),
    ("right_context", one("apply_patch", context="elsewhere")),
    ("right_context", one("apply_orbit", antecedent_set="others")),
    ("right_context", one("apply_removal", after="elsewhere")),
    ("clean_stays_clean", reorder(lambda ops: [x for op in ops for x in patched(op)])),
    ("stashed_in_time", reorder(lambda ops: sorted(ops, key=lambda op: op.op == "stash"))),
    ("stashed_in_time", one("stash", context="elsewhere")),
    ("prefills_last", reorder(lambda ops: ops[-1:] + ops[:-1])),
    ("prefills_last", reorder(lambda ops: ops[:-2] + ops[:-3:-1])),
    ("mends_some", one("repair", rows=61)),
    ("mends_some", one("estimate_patch", rows=61)),
    ("mends_some", reorder(lambda ops: [op for op in ops if op.op != "prefill"])),
    ("sums_add_up", overall(predicted_ms=1.0)),
    ("sums_add_up", overall(predicted_kl=0.5)),
    ("sums_add_up", overall(over_budget=True)),
    ("policy_kept", overall(policy="exact")),
    ("policy_kept", overall(kl_budget=0.0, over_budget=True)),
]


@pytest.fixture(scope="module")
def case() -> rules.Case:
    """One edit of [s out a b e long] whose plan holds every op that make_plan knows."""
    session = Session()
    session.costs = MENDING
    names = ("s", "out", "a", "b", "e")
    session.go([*(session.place(name, 10) for name in names), session.place("long", 60)])
    s, _, a, b, e, long = session.wanted
    recalled = [session.place(name, 10) for name in ("orbit", "patch", "load")]
    new = [session.place("bare", 60), *(session.place(name, 10) for name in ("new", "newer"))]
    wanted = [s, a, b.model_copy(update={"clean": True}), e, long, *recalled, *new]

    store, ids = session.machine.store, [w.chunk.id for w in wanted]
    session.learn_removal("e", ["s", "out", "a", "b"], ids[:3])
    session.learn_orbit("orbit", ids[:5])
    store.canonical |= {"patch", "bare"}
    store.patches = {("patch", context_key(ids[:6])): (), ("patch", "elsewhere"): ()}
    store.conditioned = {("load", context_key(ids[:7])): [], ("load", "elsewhere"): []}
    store.orbits.add(("orbit", "others"))
    plan = session.plan(wanted, Policy(kl_budget=0.0144))
    return rules.Case(plan, session.graph, wanted, store.residency(), session.max_rows)


def broken(case: rules.Case, damage: Break) -> rules.Case:
    return rules.Case(damage(case.plan), case.graph, case.wanted, case.residency, case.max_rows)


def test_the_plan_holds_every_op_and_breaks_no_rule(case: rules.Case) -> None:
    assert {op.op for op in case.plan.ops} == set(NAMES.values()) - {"form_patch"}
    rules.check(case.plan, case.graph, case.wanted, case.residency, case.max_rows)


@pytest.mark.parametrize(
    ("rule", "damage"), BREAKS, ids=[f"{name}-{i}" for i, (name, _) in enumerate(BREAKS)]
)
def test_a_broken_rule_is_named(case: rules.Case, rule: str, damage: Break) -> None:
    bad = broken(case, damage)
    assert list(getattr(rules, rule)(bad))
    with pytest.raises(PlanError) as raised:
        rules.check(bad.plan, bad.graph, bad.wanted, bad.residency, bad.max_rows)
    first = next(r for r in rules.RULES if list(r(bad)))
    assert f"rule {first.__name__}: {first.__doc__}" in raised.value.do


def test_every_rule_is_broken_by_some_plan() -> None:
    assert {name for name, _ in BREAKS} == {rule.__name__ for rule in rules.RULES}


def test_a_patch_is_formed_from_what_is_stored(case: rules.Case) -> None:
    op = FormPatch(chunk="load", tokens=10, context="elsewhere", reason="")
    assert list(rules.stored(broken(case, overall(ops=(op,)))))  # no canonical
    formed = FormCanonical(chunk="load", tokens=10, reason="")
    assert not list(rules.stored(broken(case, overall(ops=(formed, op)))))


def test_live_kv_that_was_conditioned_is_no_clean_view() -> None:
    session = Session()
    session.go([session.place(name, 10) for name in "sa"])
    s, a = session.wanted
    plan = session.plan([s, a])
    wanted = [s, a.model_copy(update={"clean": True})]
    with pytest.raises(PlanError, match="wanted clean"):
        rules.check(plan, session.graph, wanted, session.machine.store.residency(), session.max_rows)
