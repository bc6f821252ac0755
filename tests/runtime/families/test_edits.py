"""Every family through the public window: what an edit leaves is a prefill of what it shows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from agentkv_orchestrator.plan import ApplyPatch, ApplyRemoval, Plan, Prefill, Rotate
from agentkv_orchestrator.policy import Policy

from agentkv import Engine
from tests.runtime.cases import STRICT, assert_kv, live, reprefilled, words
from tests.runtime.families.gates import EDITS, Case, assert_reprefilled, engine_of

pytestmark = pytest.mark.parametrize(("case", "dtype"), EDITS)


@pytest.fixture
def engine(case: Case, dtype: torch.dtype) -> Iterator[Engine]:
    with engine_of(case, dtype) as built:
        yield built


def has(plan: Plan, kind: type) -> bool:
    return any(isinstance(op, kind) for op in plan.ops)


def test_a_full_rank_patch_and_a_fork_in_a_window_that_starts_elsewhere(engine: Engine) -> None:
    """The patch is formed of rows from row 0 on, and turned to where the second window has the message."""
    first = engine.window(STRICT)
    first.append(words(31, 1))
    note = first.append(words(29, 2))
    first.commit()
    first.evict(note)
    first.commit()
    first.close()
    window = engine.window(STRICT)
    gone = window.append(words(27, 3))
    window.append(words(31, 1))
    window.commit()
    window.evict(gone)
    window.commit()
    assert window.kv.start == 27
    window.settle()
    fork = window.fork()
    fork.append(words(5, 4))
    fork.append(words(29, 2))
    assert has(fork.commit(), Prefill)  # behind other words the patch is none
    window.append(words(29, 2))
    plan = window.commit()
    assert has(plan, ApplyPatch)
    assert not has(plan, Prefill)
    for shown in (window, fork):
        assert_reprefilled(shown)


def test_a_slide_and_a_hole_by_removal_patches(engine: Engine) -> None:
    """Both leave words behind that see further back in a sliding layer than they did."""
    window = engine.window(STRICT)
    window.append(words(9, 1), kind="system", pin=True)
    oldest = window.append(words(27, 2))
    window.append(words(15, 3))
    gone = window.append(words(17, 4))
    window.append(words(23, 5))
    for message in (oldest, gone):
        window.commit()
        window.learn_removal(message)
        window.evict(message)
        plan = window.commit()
        assert has(plan, ApplyRemoval)
        assert not has(plan, Prefill)
    assert_reprefilled(window)


def test_rows_that_move_and_come_back(engine: Engine) -> None:
    """The pinned head has nothing in front: where a slide moves it, it must be what a prefill there gives."""
    window = engine.window(Policy(name="fast"))
    head = window.append(words(9, 1), kind="system", pin=True)
    gone = window.append(words(27, 2))
    pair = [window.append(words(19 + 2 * seed, seed)) for seed in (3, 4)]
    window.commit()
    window.reorder(pair[::-1])
    assert has(window.commit(), Rotate)
    window.reorder(pair)
    window.commit()
    assert_reprefilled(window)
    window.evict(gone)
    assert has(window.commit(), Rotate)
    assert_kv(live(window).part(0, head.tokens), reprefilled(window).part(0, head.tokens))
