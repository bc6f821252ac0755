"""Whether a message can go: asked with it and without it, on a fork that leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from agentkv_orchestrator.policy import Policy

from agentkv import Engine, Window
from agentkv.audit import divergence
from agentkv.cache import Run
from agentkv.disposal import answered, retold
from agentkv.errors import ForeignChunk, InvalidInput
from agentkv.metrics import agreement
from agentkv.queries import asked_of
from tests.runtime.cases import assert_unchanged, engine, snapshot, words


@pytest.fixture
def built() -> Iterator[Engine]:
    with engine() as built:
        yield built


def filled(built: Engine, policy: str = "balanced") -> tuple[Window, list]:
    window = built.window(policy)
    handles = [window.append(words(20 + n, n), pin=n == 0) for n in range(4)]
    handles.append(window.append(words(7, 9), kind="user"))
    window.commit()
    return window, handles


def reprefilled_logits(window: Window, question: int, answer: Sequence[int] = ()) -> torch.Tensor:
    """Of the last ``question`` tokens and the ``answer`` behind them, from nothing."""
    ids = np.concatenate([window.ids(), np.asarray(answer, dtype=np.int64)])
    kv = window.engine.backend.new_kv(len(ids))
    kv.end = len(ids)
    return window.engine.runner.run([Run(0, ids)], kv.live(), keep=question + len(answer))


def test_the_question_over_an_exact_window_is_its_re_prefill(built: Engine) -> None:
    window, _ = filled(built)
    asked = asked_of(window, None)
    said, found = answered(window, asked, 5)
    wanted = reprefilled_logits(window, 7, said[:-1])
    assert said == wanted[-5:].argmax(-1).tolist()
    assert float((found - wanted).abs().max()) < 1e-9
    assert float((retold(window, asked, said) - wanted).abs().max()) < 1e-9


@pytest.mark.parametrize("which", [0, 1, 3])
def test_under_exact_it_is_the_truth(which: int, built: Engine) -> None:
    """KL between two re-prefills, with the message and without it."""
    window, handles = filled(built)
    found = window.disposable(handles[which], policy="exact")
    said, _ = answered(window, asked_of(window, None), 8)
    whole = reprefilled_logits(window, 7, said[:-1])
    twin = built.window("exact")
    for n in range(4):
        if n != which:
            twin.append(words(20 + n, n))
    twin.append(words(7, 9), kind="user")
    twin.commit()
    left = reprefilled_logits(twin, 7, said[:-1])
    kl = divergence(whole, left)
    assert found.kl == pytest.approx(float(kl[-8:].mean()), rel=1e-6)
    assert found.kl_per_token == pytest.approx(kl[-8:].tolist(), rel=1e-6)
    assert found.kl_question == pytest.approx(float(kl[:7].mean()), rel=1e-6)
    assert found.agreement == agreement(whole[-8:], left[-8:]) / 8
    assert found.kl > 0


@pytest.mark.parametrize("policy", ["fast", "balanced", "exact"])
def test_nothing_changes(policy: str, built: Engine) -> None:
    """Neither the window, nor the store, nor the history, nor a pinned message."""
    window, handles = filled(built)
    before, stored, past = snapshot(window), tuple(built.store.keys()), window.history()
    for handle in handles[:-1]:
        window.disposable(handle, policy=policy)
    assert_unchanged(window, before)
    assert tuple(built.store.keys()) == stored
    assert [r.content for r in window.history().past] == [r.content for r in past.past]
    assert len(built._windows) == 1
    assert window.content.get(handles[0].id).pinned  # type: ignore[union-attr]


def test_what_stands_behind_the_question_changes_nothing(built: Engine) -> None:
    window, handles = filled(built)
    late = window.append(words(9, 11))
    found = window.disposable(late, question=handles[-1])
    assert found.kl < 1e-12
    assert found.agreement == 1
    assert found.can_go
    assert "can go" in str(found)


def test_the_verdict_goes_by_the_threshold(built: Engine) -> None:
    window, handles = filled(built)
    kl = window.disposable(handles[1]).kl
    assert window.disposable(handles[1]).threshold == Policy().kl_budget
    assert window.disposable(handles[1], threshold=kl).can_go
    assert not window.disposable(handles[1], threshold=kl / 2).can_go
    assert "matters" in str(window.disposable(handles[1], threshold=0.0))


def test_a_message_is_not_tried_on_itself(built: Engine) -> None:
    window, handles = filled(built)
    with pytest.raises(InvalidInput, match="as the question"):
        window.disposable(handles[-1])
    with pytest.raises(InvalidInput, match="new_tokens=0"):
        window.disposable(handles[1], new_tokens=0)
    with pytest.raises(InvalidInput, match="nothing in front of it"):
        window.disposable(handles[1], question=handles[0])
    with pytest.raises(ForeignChunk):
        built.window().disposable(handles[0])


def test_the_head_of_an_answer_belongs_to_the_question() -> None:
    with engine(chat=True) as built:
        window = built.window()
        note = window.append(words(20, 1))
        window.append(words(5, 2), kind="user")
        entry = asked_of(window, None)
        window.commit()
        _, found = answered(window, entry, 3)
        assert len(found) == entry.handle.tokens + 1 + 2  # the marker word of the assistant, two tokens
        assert window.disposable(note).kl > 0
