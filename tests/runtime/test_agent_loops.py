"""What agents do to their windows all day, and what it may cost: tokens through the model, by usage.

Each of these made a cache useless, wrong or crash somewhere else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from agentkv_orchestrator.policy import Policy

from agentkv import Engine, Window
from tests.runtime.cases import STRICT, engine, words


@pytest.fixture
def built() -> Iterator[Engine]:
    with engine(dtype=torch.float32) as built:
        yield built


def spent(window: Window) -> int:
    """Tokens that a commit of what is noted runs through the model."""
    before = window.usage.recomputed
    window.commit()
    return window.usage.recomputed - before


def assert_sound(window: Window, *texts: str) -> None:
    """The window shows these texts, and its error is a number."""
    window.commit()
    assert window.ids().tolist() == window.engine.tokenizer(" ".join(texts))["input_ids"]
    found = window.audit(attribute=False)
    assert math.isfinite(found.kl)
    assert 0 <= found.agreement <= 1


def clock(second: int) -> str:
    """A long header with the time in its middle."""
    return f"{words(150, 1)} w{20 + second} w{40 + second} {words(150, 2)}"


LOOSE = Policy(name="balanced", kl_budget=10.0)
"""What is asked here is which tokens an edit touches; how many survivors a budget refreshes is the error
model's."""


@pytest.mark.parametrize("policy", [LOOSE, "fast"], ids=["balanced", "fast"])
def test_a_clock_early_in_the_prompt_costs_the_clock(policy: str | Policy, built: Engine) -> None:
    window = built.window(policy)
    header = window.append(clock(0), kind="system", pin=True)
    documents = [words(80, seed) for seed in (3, 4)]
    for text in documents:
        window.append(text)
    window.commit()
    for second in range(1, 5):
        header = window.replace(header, clock(second))
        assert spent(window) <= 2 + 2  # the clock, and a token that happens to be like it at its edge
        assert_sound(window, clock(second), *documents)


def test_a_clock_early_in_the_prompt_is_exact_when_asked_for(built: Engine) -> None:
    window = built.window("exact")
    header = window.append(clock(0), kind="system", pin=True)
    window.append(words(80, 3))
    window.commit()
    window.replace(header, clock(1))
    assert spent(window) == 2 + 150 + 80
    assert window.audit(attribute=False).kl <= 1e-6


@pytest.mark.parametrize("policy", [LOOSE, "fast"], ids=["balanced", "fast"])
def test_tools_in_another_order_cost_nothing(policy: str | Policy, built: Engine) -> None:
    window = built.window(policy)
    system = words(120, 1)
    window.append(system, kind="system", pin=True)
    texts = [words(20 + 3 * n, 10 + n) for n in range(4)]
    tools = [window.append(text, kind="tool") for text in texts]
    window.append(words(200, 3))
    window.commit()
    order = [2, 0, 3, 1]
    window.reorder([tools[n] for n in order])
    assert spent(window) == 0
    assert_sound(window, system, *(texts[n] for n in order), words(200, 3))


def test_a_mode_switch_exchanges_the_tool_list_and_back(built: Engine) -> None:
    """Two tool lists take turns: each is computed once."""
    window = built.window("balanced")
    system, question = words(60, 1), words(12, 2)
    window.append(system, kind="system", pin=True)
    first = window.append(words(40, 3), kind="tool")
    asked = window.append(question)
    window.commit()
    window.evict(first)
    second = window.append(words(45, 4), kind="tool", before=asked)
    window.commit()
    for turn in range(4):
        here, gone = (second, first) if turn % 2 == 0 else (first, second)
        window.evict(here)
        window.recall(gone, before=asked)
        assert spent(window) <= asked.tokens
        assert_sound(window, system, words(40, 3) if gone is first else words(45, 4), question)


@pytest.mark.parametrize("policy", [LOOSE, "fast"], ids=["balanced", "fast"])
def test_a_sliding_history_costs_the_new_turn(policy: str | Policy, built: Engine) -> None:
    window = built.window(policy, max_tokens=600)
    system = words(50, 1)
    window.append(system, kind="system", pin=True)
    history = [words(30, 100 + turn) for turn in range(16)]
    for text in history:
        window.append(text)
    window.commit()
    for turn in range(16, 28):
        history.append(words(30, 100 + turn))
        window.slide(600 - 30 - 40)
        window.append(history[-1])
        window.commit()
        held = (len(window) - 50) // 30
        assert_sound(window, system, *history[-held:])
    assert window.usage.recomputed == 50 + 28 * 30


def test_compaction_costs_the_summary(built: Engine) -> None:
    """Most of a history becomes one short message; what stays is not computed again under fast."""
    window = built.window(Policy(name="fast"))
    system = words(60, 1)
    window.append(system, kind="system", pin=True)
    old = [window.append(words(40, 10 + turn)) for turn in range(10)]
    recent = [words(35, 30 + turn) for turn in range(3)]
    kept = [window.append(text) for text in recent]
    window.commit()
    for handle in old:
        window.evict(handle)
    summary = words(25, 60)
    window.append(summary, before=kept[0])
    assert spent(window) == 25
    assert_sound(window, system, summary, *recent)


def test_compaction_under_a_budget_says_what_it_predicts(built: Engine) -> None:
    window = built.window("balanced")
    window.append(words(60, 1), kind="system", pin=True)
    old = [window.append(words(40, 10 + turn)) for turn in range(10)]
    kept = [window.append(words(35, 30 + turn)) for turn in range(3)]
    window.commit()
    for handle in old:
        window.evict(handle)
    window.append(words(25, 60), before=kept[0])
    assert 25 <= spent(window) <= 25 + 3 * 35
    assert window.last_plan is not None
    assert window.last_plan.predicted_kl <= window.last_plan.kl_budget
    assert_sound(window, words(60, 1), words(25, 60), *(words(35, 30 + turn) for turn in range(3)))


@pytest.mark.parametrize("policy", [LOOSE, "fast"], ids=["balanced", "fast"])
def test_keeping_the_last_screenshots_costs_the_new_one(policy: str | Policy, built: Engine) -> None:
    """An image cap takes one message of a kind out of the middle at every turn."""
    window = built.window(policy)
    texts: list[tuple[str, str]] = [("system", words(60, 1))]
    window.append(texts[0][1], kind="system", pin=True)
    shots = []
    for turn in range(7):
        note, shot = words(12, 20 + turn), words(25, 40 + turn)
        window.append(note)
        shots.append(window.append(shot, kind="screenshot"))
        texts += [("note", note), ("screenshot", shot)]
        if len(shots) > 3:
            gone = shots.pop(0)
            window.evict(gone)
            texts.remove(next(text for text in texts if text[0] == "screenshot"))
        assert spent(window) == 12 + 25 + (60 if turn == 0 else 0)
        assert_sound(window, *(text for _, text in texts))


@pytest.mark.parametrize("policy", ["exact", "balanced", "fast"])
def test_another_question_about_the_same_document_costs_the_question(policy: str, built: Engine) -> None:
    window, document = built.window(policy), words(300, 1)
    window.append(document, kind="document")
    question = window.append(words(9, 2))
    window.commit()
    for seed in range(3, 6):
        window.evict(question)
        question = window.append(words(9, seed))
        assert spent(window) == 9
        assert_sound(window, document, words(9, seed))
    assert window.audit(attribute=False).kl <= 1e-6


def test_another_question_in_a_new_window_costs_the_question_once_the_document_is_stored(
    built: Engine,
) -> None:
    document = words(300, 1)
    first = built.window(STRICT)
    handle = first.append(document, kind="document")
    first.append(words(9, 2))
    first.commit()
    first.evict(handle)
    first.commit()
    second = built.window(STRICT)
    second.append(document, kind="document")
    second.append(words(9, 3))
    assert spent(second) == 9
    assert second.audit(attribute=False).kl <= 1e-6


@pytest.mark.parametrize("policy", ["exact", "balanced", "fast"])
def test_the_same_document_may_stand_twice(policy: str, built: Engine) -> None:
    window = built.window(policy)
    document, other = words(70, 1), words(20, 2)
    first = window.append(document)
    window.append(other)
    second = window.append(document)
    assert first is not second
    assert_sound(window, document, other, document)
    window.evict(first)
    assert_sound(window, other, document)
    window.recall(first)
    window.move(second, before=first)
    assert_sound(window, other, document, document)
    window.evict(second)
    window.evict(first)
    window.append(words(5, 3))
    assert_sound(window, other, words(5, 3))
    window.recall(second)
    window.recall(first)
    assert_sound(window, other, words(5, 3), document, document)


@pytest.mark.parametrize("policy", ["exact", "balanced", "fast"])
def test_the_same_prompt_may_be_asked_twice(policy: str, built: Engine) -> None:
    """In one window and in two, answers included."""
    window, other = built.window(policy), built.window(policy)
    first = window.generate(words(30, 1), max_new_tokens=5, stop=False)
    assert other.generate(words(30, 1), max_new_tokens=5, stop=False) == first
    second = window.generate(words(30, 1), max_new_tokens=5, stop=False)
    assert_sound(window, words(30, 1), first, words(30, 1), second)


def test_everything_stored_in_another_order_is_placed_in_that_order(built: Engine) -> None:
    """A hit of 100 % with nothing to prefill; the answer still needs logits."""
    window = built.window(Policy(name="fast"))
    texts = [words(40, seed) for seed in range(3)]
    handles = [window.append(text) for text in texts]
    window.commit()
    window.learn_orders(handles)
    for handle in handles:
        window.evict(handle)
    window.commit()
    assert len(window) == 0
    for handle in reversed(handles):
        window.recall(handle)
    assert spent(window) == 0
    assert_sound(window, *reversed(texts))
    said = window.generate(max_new_tokens=4, stop=False)
    assert len(said.split()) == 4
    assert_sound(window, *reversed(texts), said)


def test_everything_may_leave_and_come_back(built: Engine) -> None:
    window = built.window(STRICT)
    texts = [words(40, seed) for seed in range(3)]
    handles = [window.append(text) for text in texts]
    window.commit()
    for handle in handles:
        window.evict(handle)
    window.commit()
    assert (len(window), window.kv.end - window.kv.start) == (0, 0)
    for handle in handles:
        window.recall(handle)
    assert spent(window) == 0
    assert_sound(window, *texts)
    assert window.audit(attribute=False).kl <= 1e-6


def test_a_store_does_not_grow_with_every_turn(built: Engine) -> None:
    """The same message leaves and comes back all day: it is stored once."""
    window = built.window(STRICT)
    window.append(words(40, 1))
    note = window.append(words(50, 2))
    window.commit()
    sizes = []
    for _ in range(6):
        window.evict(note)
        window.commit()
        window.recall(note)
        window.commit()
        sizes.append(built.store.nbytes)
    assert len(set(sizes)) == 1
    assert sizes[0] > 0


def test_settling_shrinks_the_store(built: Engine) -> None:
    with engine(dtype=torch.float32, patch_rank=2) as small:
        window = small.window(STRICT)
        window.append(words(100, 1))
        note = window.append(words(200, 2))
        for context in range(4):
            window.append(words(10, 50 + context), before=note)
            window.commit()
            window.evict(note)
            window.commit()
            window.recall(note)
        before = small.store.nbytes
        assert window.settle().ops
        assert small.store.nbytes < before / 2
        assert window.usage.idle_ms > 0
        assert not window.settle().ops


def test_a_long_conversation_in_one_window(built: Engine) -> None:
    """Fifty turns under a cap: ids stay right, errors finite, rows inside the buffer."""
    window = built.window("balanced", max_tokens=300)
    window.append(words(30, 1), kind="system", pin=True)
    for turn in range(50):
        window.slide(300 - 40)
        window.generate(words(12, turn), max_new_tokens=6, stop=False)
        shown = [built.chunks.ids(p.chunk.id) for p in window.graph.placements]
        assert sum(map(len, shown)) == len(window) == window.kv.end - window.kv.start
        assert window.kv.end <= window.kv.capacity
    assert window.usage.decoded == 300
    assert math.isfinite(window.audit(attribute=False).kl)
