"""Sliding by benefit, and what an eviction says it costs to take back."""

from __future__ import annotations

import pytest
import torch
from agentkv_orchestrator.plan import Evict, Placing, Plan
from agentkv_orchestrator.policy import Policy

from agentkv import Window
from agentkv.errors import InvalidInput, TooLong
from agentkv.testing import recording_engine
from tests.runtime.cases import assert_exact, engine, words


def promises(plan: Plan) -> dict[int, tuple[float | None, float | None]]:
    return {op.uid: (op.bring_back_ms, op.bring_back_kl) for op in plan.ops if isinstance(op, Evict)}


def spent(plan: Plan, uid: int) -> tuple[float, float]:
    ops = [op for op in plan.ops if op.uid == uid]
    return round(sum(op.ms for op in ops), 4), round(sum(op.kl for op in ops), 6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_wrong_eviction_costs_what_the_plan_said(dtype: torch.dtype) -> None:
    """In a window of a real (tiny) model: taken back at once, it is priced as promised, and exact again where
    the budget left alone what stands behind."""
    with engine("llama", dtype) as made, made.window(Policy(kl_budget=1.0)) as window:
        window.append(words(9, 1), kind="system", pin=True)
        handles = [window.append(words(20 + i, i), kind="document") for i in range(4)]
        window.commit()
        for handle in handles[1:3]:
            window.evict(handle)
        promised = promises(window.plan())
        assert promised
        assert all(ms is not None and ms > 0 for ms, _ in promised.values())
        plan = window.commit()
        assert promises(plan).keys() == promised.keys()
        for handle in handles[1:3]:
            window.recall(handle, before=handles[3])
        back = window.commit()
        assert {uid: spent(back, uid) for uid in promised} == promised
        assert {op.op for op in back.ops if isinstance(op, Placing) and op.uid in promised} == {"load"}
        assert_exact(window)


def filled(window: Window) -> dict[str, object]:
    window.append("w1 w2", kind="system", pin=True)
    found = {}
    for i in range(3):
        found[f"chat {i}"] = window.append(f"w{10 + i} w3 w4 w5", kind="chatter")
        found[f"document {i}"] = window.append(f"w{20 + i} w3 w4 w5", kind="document")
    window.commit()
    return found


def test_kinds_that_are_recalled_stay_longer() -> None:
    with recording_engine() as made:
        window = made.window()
        found = filled(window)
        for i in range(3):
            for _ in range(2):
                window.evict(found[f"document {i}"])  # type: ignore[arg-type]
                window.commit()
                window.recall(found[f"document {i}"])  # type: ignore[arg-type]
                window.commit()
        gone = window.slide(len(window) - 12, by="benefit")
        assert [h.kind for h in gone] == ["chatter"] * 3
        window.commit()
        assert window.content.tokens == 14


def test_the_oldest_leave_first_by_default_and_where_nothing_is_known() -> None:
    with recording_engine() as made:
        window = made.window()
        found = filled(window)
        twin = window.fork()
        assert window.slide(18) == [found["chat 0"], found["document 0"]]
        assert twin.slide(18, by="benefit") == [found["chat 0"], found["document 0"]]


def test_what_slide_refuses_changes_nothing() -> None:
    with recording_engine() as made:
        window = made.window()
        filled(window)
        before = window.content
        with pytest.raises(InvalidInput, match="oldest or benefit"):
            window.slide(10, by="newest")  # type: ignore[arg-type]
        with pytest.raises(TooLong):
            window.slide(1, by="benefit")
        assert window.content == before
