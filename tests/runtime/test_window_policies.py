"""After any edits: exact is a prefix cache to the bit, a budget of nothing is exact to rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from agentkv_orchestrator.plan import Keep, Prefill
from agentkv_orchestrator.policy import Policy
from hypothesis import given, settings

from agentkv import Window
from agentkv.cache import Run
from agentkv.kv import KVBlock
from agentkv.testing import same_bits
from tests.runtime.cases import FAMILIES, STRICT, assert_exact, engine, live, question_logits, words
from tests.runtime.script import EDITS, Edit, Script, scripts
from tests.tolerances import LOGITS

CASES = [(family, dtype) for family in FAMILIES for dtype in (torch.float64, torch.float32)]


def cached_prefix(window: Window, before: tuple[int, ...]) -> int:
    """Tokens that a prefix cache keeps: those of the leading placements that stood there before."""
    kept = 0
    for wanted, uid in zip(window.content.wanted(), before, strict=False):
        if wanted.uid != uid:
            break
        kept += wanted.chunk.length
    return kept


def prefix_cache(window: Window, kept: int) -> KVBlock:
    """The rows as a prefix cache fills them: the kept ones as they are, one prefill over all others."""
    backend, tokens, first = window.engine.backend, window.ids(), window.kv.start
    kv = backend.new_kv(first + len(tokens))
    kv.start, kv.end = first, first + len(tokens)
    backend.place(kv, first, window.kv.view(first, first + kept))
    if kept < len(tokens):
        backend.prefill(kv, [Run(first + kept, tokens[kept:])], keep=0)
    return kv.view(first, kv.end)


@pytest.mark.parametrize(("family", "dtype"), CASES)
@settings(max_examples=6, deadline=None)
@given(script=scripts(most=9))
def test_exact_is_a_prefix_cache_to_the_bit(family: str, dtype: torch.dtype, script: list[Edit]) -> None:
    with engine(family, dtype) as built:
        player = Script(built.window("exact"))
        for edit in script:
            player.one(edit)
            window = player.window
            kept, before = cached_prefix(window, tuple(p.uid for p in window.graph.placements)), live(window)
            plan = window.commit()
            assert plan.tokens() == {
                "reused": kept,
                "rotated": 0,
                "patched": 0,
                "recomputed": len(window) - kept,
            }
            assert [isinstance(op, Keep) for op in plan.ops if isinstance(op, Keep | Prefill)] == sorted(
                (isinstance(op, Keep) for op in plan.ops if isinstance(op, Keep | Prefill)), reverse=True
            )
            now = live(window)
            assert same_bits(now.part(0, kept), before.part(0, kept))
            assert same_bits(now, prefix_cache(window, kept))
        text = player.text
        assert player.window.ids().tolist() == built.tokenizer(text)["input_ids"]
        if len(player.window):
            assert_exact(player.window)


@pytest.mark.parametrize(("family", "dtype"), CASES)
@settings(max_examples=5, deadline=None)
@given(script=scripts((*EDITS, "learn", "drop"), most=10))
def test_a_budget_of_nothing_is_exact_to_rounding(
    family: str, dtype: torch.dtype, script: list[Edit]
) -> None:
    """Whatever is moved, loaded or kept then, it is what a re-prefill gives."""
    with engine(family, dtype) as built:
        player = Script(built.window(STRICT))
        player.play([*script, ("append", 2, 99), ("append", 3, 99)])
        player.window.commit()
        assert_exact(player.window)
        audit = player.window.audit(attribute=False)
        assert audit.kl <= LOGITS[dtype]
        assert audit.agreement == 1.0


@settings(max_examples=8, deadline=None)
@given(script=scripts((*EDITS, "clean", "learn", "drop"), most=10))
def test_fast_and_balanced_hold_the_right_tokens_and_finite_numbers(script: list[Edit]) -> None:
    for policy in ("fast", "balanced"):
        with engine(dtype=torch.float32) as built:
            player = Script(built.window(policy))
            player.play([*script, ("append", 2, 99), ("append", 3, 99)])
            plan = player.window.commit()
            assert player.window.ids().tolist() == built.tokenizer(player.text)["input_ids"]
            assert all(torch.isfinite(slot).all() for slot in live(player.window).slots)
            assert np.isfinite(player.window.audit(attribute=False).kl)
            assert policy == "fast" or plan.predicted_kl <= plan.kl_budget + 1e-9


@settings(max_examples=10, deadline=None)
@given(script=scripts((*EDITS, "clean"), most=10))
def test_going_back_to_exact_repairs_everything(script: list[Edit]) -> None:
    """A window that was edited loosely becomes exact by its next commit under exact."""
    with engine() as built:
        player = Script(built.window(Policy(name="fast")))
        player.play([*script, ("append", 2, 0)])
        window = player.window
        window.commit()
        for handle in player.here:
            window.clean_view(handle, on=False)
        window.policy = Policy(name="exact")
        window.commit()
        assert_exact(window)


def test_equal_edits_give_equal_bits() -> None:
    def played() -> tuple[KVBlock, torch.Tensor]:
        with engine(dtype=torch.float32) as built:
            player = Script(built.window("balanced"))
            player.play([("append", n, n) for n in range(1, 6)])
            player.play([("commit", 0, 0), ("evict", 1, 0), ("commit", 0, 0), ("settle", 0, 0)])
            player.play([("recall", 0, 1), ("reorder", 0, 3), ("replace", 1, 4), ("commit", 0, 0)])
            return live(player.window), question_logits(player.window)

    (first, logits), (second, others) = played(), played()
    assert same_bits(first, second)
    assert torch.equal(logits, others)


def test_exact_does_not_move_rows_or_read_the_store() -> None:
    with engine() as built:
        loose = built.window(STRICT)
        note = loose.append(words(30, 1))
        loose.append(words(20, 2))
        loose.commit()
        loose.evict(note)
        loose.commit()
        window = built.window("exact")
        window.append(words(30, 1))
        window.append(words(20, 2))
        assert window.commit().tokens()["recomputed"] == 50
        window.evict(window.content.live()[0].handle)
        plan = window.commit()
        assert plan.tokens()["recomputed"] == 20
        assert (window.kv.start, window.kv.end) == (0, 20)
