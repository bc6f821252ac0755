"""Rows computed to mend others: all of them are a re-prefill, some are those that are attended most."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil

import pytest
import torch
from agentkv_orchestrator.cost import CostTable
from agentkv_orchestrator.errors_model import Mended
from agentkv_orchestrator.plan import EstimatePatch, Op, PlaceCanonical, Plan, Prefill, Repair
from agentkv_orchestrator.planner import after
from agentkv_orchestrator.policy import Policy

from agentkv import Engine, Window
from agentkv.attention import watched
from agentkv.audit import divergence
from agentkv.backends.base import Backend
from agentkv.cache import Run, WindowKV
from agentkv.committing import held
from agentkv.errors import NonFinite, UnsupportedModel
from agentkv.patches import Patch
from agentkv.store.base import Key
from agentkv.testing import same_bits
from tests.runtime.cases import (
    DTYPES,
    FAMILIES,
    FULL,
    assert_exact,
    engine,
    live,
    question_logits,
    words,
)
from tests.tolerances import LOGITS

BUDGET = Policy(kl_budget=0.2)


def costs(**mended: Mended) -> CostTable:
    """A table that knows what mending leaves, for a model that computes slowly: mending pays."""
    table = CostTable.shipped()
    slow = table.ms["prefill"].model_copy(update={"base": 0.0, "per_token": 5.0})
    plain = {"canonical": 0.3, "bound": 1.0, "near": 1e9, "kinds": {}}  # by share of the tokens
    kl = table.kl.model_copy(update={**plain, **mended})
    return table.model_copy(update={"kl": kl, "ms": {**table.ms, "prefill": slow}})


class Exactly:
    """Estimates a patch by computing the chunk where it stands: no guess at all."""

    def estimate(self, backend: Backend, kv: WindowKV, run: Run, rows: int) -> Patch:
        canonical = backend.read(kv, run.row, run.stop)
        end, kv.end = kv.end, run.stop
        backend.prefill(kv, [run], keep=0)
        kv.end = end
        return backend.form(backend.read(kv, run.row, run.stop), canonical)


@pytest.fixture(params=[(f, d) for f in FAMILIES for d in DTYPES], ids=str)
def case(request: pytest.FixtureRequest) -> tuple[str, torch.dtype]:
    return request.param


def recalled(built: Engine, question: bool = True) -> tuple[Window, list[int]]:
    """A window whose last message was taken out and is asked for again, with only its canonical stored;
    nothing is committed since. Returns the uids of that message as well."""
    window = built.window(BUDGET)
    window.append(words(20, 1))
    window.append(words(12, 3))
    long = window.append(words(90, 2))
    window.commit()
    parts = window.content.get(long.id).parts
    window.evict(long)
    window.commit()
    for _, chunk in parts:
        built.shelf.put(Key("canonical", chunk.id), built.backend.canonical(*built.tokens(chunk.id)))
        for key in built.store.held([chunk.id]):
            if key.kind == "conditioned":
                built.store.drop(key)
    window.recall(long)
    if question:
        window.append(words(9, 4))
    return window, [uid for uid, _ in parts]


def carried_out(window: Window, plan: Plan) -> torch.Tensor | None:
    """What the executor leaves and answers for a plan that no planner made."""
    outcome = window.engine.executor.execute(plan, window.kv, keep=4)
    window.graph = after(window.graph, plan, window.content.wanted(), held(window))
    window.committed = window.content
    return outcome.logits


def with_rows(plan: Plan, uids: list[int], rows: Callable[[int], int]) -> Plan:
    """Prefills of these as canonicals with so many of their rows repaired."""
    ops: list[Op] = []
    for op in plan.ops:
        if isinstance(op, Prefill) and op.uid in uids:
            fields = {"uid": op.uid, "chunk": op.chunk, "tokens": op.tokens, "reason": "test"}
            placed = PlaceCanonical(row=op.row, position=op.position, **fields)
            ops += [placed, Repair(rows=rows(op.tokens), **fields)]
    ops += [op for op in plan.ops if isinstance(op, Prefill) and op.uid not in uids]
    kept = [op for op in plan.ops if not isinstance(op, Prefill)]
    return plan.model_copy(update={"ops": (*kept, *ops)})


def ops(plan: Plan, kind: type) -> list:
    return [op for op in plan.ops if isinstance(op, kind)]


def test_all_rows_repaired_are_a_reprefill(case: tuple[str, torch.dtype]) -> None:
    with engine(*case) as built:
        window, uids = recalled(built)
        window.policy = Policy(kl_budget=0)
        logits = carried_out(window, with_rows(window.plan(), uids, lambda tokens: tokens))
        assert_exact(window)
        truth = reprefilled_logits(window, 4)
        assert float((logits - truth).abs().max()) <= LOGITS[case[1]]


def reprefilled_logits(window: Window, count: int) -> torch.Tensor:
    with torch.inference_mode():
        return window.engine.loaded.model(torch.tensor(window.ids())[None]).logits[0, -count:]


def test_the_more_rows_are_repaired_the_closer_it_gets() -> None:
    """Which rows are the best is not asked here: a random model attends nothing in particular."""
    errors = []
    for share in (0.0, 0.25, 0.75):
        with engine() as built:
            window, uids = recalled(built)
            window.policy = Policy(kl_budget=0)
            plan = with_rows(window.plan(), uids, lambda tokens, share=share: max(1, ceil(share * tokens)))
            logits = carried_out(window, plan)
            errors.append(float(divergence(reprefilled_logits(window, 4), logits).mean()))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < errors[0] / 2


def test_the_planner_repairs_where_that_is_cheapest(case: tuple[str, torch.dtype]) -> None:
    with engine(*case, costs=costs(repair=Mended(share=0.25, leaves=0.5))) as built:
        window, uids = recalled(built)
        plan = window.commit()
        repairs = ops(plan, Repair)
        assert {op.uid for op in repairs} <= set(uids)
        assert all(op.rows == ceil(op.tokens / 4) for op in repairs)
        assert plan.predicted_kl <= BUDGET.kl_budget
        assert not any(window.graph.get(op.uid).exact for op in repairs)
        assert torch.isfinite(question_logits(window)).all()
        again = window.plan()  # the next question is not the one that the rows were picked for
        doubted = {op.uid for op in again.ops if op.kl > 0 or isinstance(op, Prefill)}
        assert doubted >= {op.uid for op in repairs}


def test_an_estimate_that_is_no_guess_is_a_reprefill(case: tuple[str, torch.dtype]) -> None:
    mended = costs(estimated=Mended(share=0.25, leaves=0.0))
    with engine(*case, costs=mended, estimator=Exactly(), patch_rank=FULL) as built:
        window, uids = recalled(built)
        plan = window.commit()
        assert {op.uid for op in ops(plan, EstimatePatch)} == set(uids)
        assert_exact(window)


def test_an_estimate_needs_an_estimator_and_leaves_everything_as_it_was() -> None:
    with engine(costs=costs(estimated=Mended(share=0.25, leaves=0.0))) as built:
        window, _ = recalled(built, question=False)
        before = window.kv.view(window.kv.start, window.kv.end).clone()
        with pytest.raises(UnsupportedModel, match="estimator="):
            window.commit()
        assert same_bits(live(window), before)


def test_a_repair_that_fails_is_rolled_back() -> None:
    """The second forward breaks, after the first has written the question and before anything is answered."""
    with engine(costs=costs(repair=Mended(share=0.25, leaves=0.5))) as built:
        window, _ = recalled(built)
        assert ops(window.plan(), Repair)
        before = live(window)
        run, calls = built.backend.prefill, []

        def breaking(*args: object, **kwargs: object) -> torch.Tensor:
            calls.append(args)
            if len(calls) == 2:
                raise NonFinite(got="NaN", expected="numbers", do="nothing")
            return run(*args, **kwargs)

        built.backend.prefill = breaking
        with pytest.raises(NonFinite):
            window.commit()
        assert same_bits(live(window), before)


def test_a_watch_sees_what_eager_attention_weighs() -> None:
    """The weights of transformers' own attention, scaled in each layer and averaged."""
    with engine() as built:
        window = built.window()
        window.append(words(40, 1))
        window.commit()
        ids = window.ids()
        aside = built.backend.new_kv(len(ids))
        aside.end = len(ids)
        with watched(6) as watch:
            built.backend.prefill(aside, [Run(0, ids)], keep=0)
        model = built.loaded.model
        with torch.inference_mode(), eager(model):
            weights = model(torch.tensor(ids)[None], output_attentions=True).attentions
        means = torch.stack([w[0, :, -6:].mean((0, 1)) for w in weights])
        low, high = means.min(1, keepdim=True).values, means.max(1, keepdim=True).values
        assert torch.allclose(watch.attention, ((means - low) / (high - low)).mean(0), atol=1e-9)


@contextmanager
def eager(model: torch.nn.Module) -> Iterator[None]:
    before = model.config._attn_implementation
    model.config._attn_implementation = "eager"
    try:
        yield
    finally:
        model.config._attn_implementation = before
