"""A window that is off, computed again while its agent waits."""

from __future__ import annotations

import math

import pytest
import torch
from agentkv_orchestrator.plan import FormPatch, Prefill
from agentkv_orchestrator.policy import Policy

from agentkv import Engine, Window
from agentkv.errors import NonFinite
from tests.runtime.cases import (
    DTYPES,
    FAMILIES,
    assert_exact,
    assert_unchanged,
    engine,
    question_logits,
    snapshot,
    true_logits,
    words,
)


def off(built: Engine) -> Window:
    """Survivors of a hole, as fast leaves them."""
    window = built.window(Policy(name="fast"))
    window.append(words(20, 1))
    gone = window.append(words(40, 2))
    for seed in range(3, 7):
        window.append(words(25 + seed, seed))
    window.commit()
    window.evict(gone)
    window.commit()
    return window


def error(window: Window) -> float:
    return float((question_logits(window) - true_logits(window)).abs().max())


@pytest.mark.parametrize("case", [(f, d) for f in FAMILIES for d in DTYPES], ids=str)
def test_with_time_enough_the_window_is_a_reprefill(case: tuple[str, torch.dtype]) -> None:
    with engine(*case) as built:
        window = off(built)
        plan = window.settle(ms=math.inf)
        assert any(isinstance(op, Prefill) for op in plan.ops)
        assert any(isinstance(op, FormPatch) for op in plan.ops)  # of what was stashed on the way
        assert_exact(window)
        assert window.graph.stale() == ()
        assert window.explain().startswith("balanced")


def test_a_little_at_every_pause_gets_there_as_well() -> None:
    with engine() as built:
        window = off(built)
        table, first = built.costs.ms["prefill"], error(window)
        pause = table.of(60, 200)
        pauses = 0
        while any(isinstance(op, Prefill) for op in window.settle(ms=pause).ops):
            pauses += 1
        assert 1 < pauses < 19
        assert first > 1e-6
        assert_exact(window)


def test_noted_edits_wait_for_their_commit() -> None:
    with engine() as built:
        window = off(built)
        window.append(words(9, 8))
        window.settle(ms=math.inf)
        assert len(window.ids()) == len(window) - 9
        window.commit()
        assert_exact(window)


def test_a_refresh_that_fails_leaves_the_window_as_it_was() -> None:
    with engine() as built:
        window = off(built)
        before = snapshot(window)

        def broken(*args: object, **kwargs: object) -> torch.Tensor:
            raise NonFinite(got="NaN", expected="numbers", do="nothing")

        built.backend.prefill = broken
        with pytest.raises(NonFinite):
            window.settle(ms=math.inf)
        assert_unchanged(window, before)
