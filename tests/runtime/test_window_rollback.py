"""All or nothing: whatever fails, and wherever, the window is bit for bit what it was and goes on working."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from agentkv_orchestrator.policy import Policy
from torch import nn

from agentkv import Engine, Handle, Window
from agentkv.backends.base import Backend
from agentkv.cache import WindowKV
from agentkv.errors import NonFinite, OutOfMemory, TooLong
from agentkv.kv import KVBlock
from agentkv.testing import same_bits
from tests.models import full_precision, tiny_model, tiny_tokenizer
from tests.runtime.cases import assert_exact, assert_unchanged, engine, ids, live, snapshot, words
from tests.runtime.cases import model as shared_model

NO_MEMORY = "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"
VERBS = ("read", "place", "prefill", "canonical", "form")


class Failing:
    """A backend whose n-th call leaves a mess in the rows it was to write, and fails."""

    def __init__(self, backend: Backend, nth: int, error: BaseException) -> None:
        self._backend, self._nth, self._error = backend, nth, error
        self.calls = list[str]()

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._backend, name)
        if name not in VERBS:
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            if len(self.calls) - 1 != self._nth:
                return real(*args, **kwargs)
            if name in ("place", "prefill"):
                kv, where = args[0], args[1]
                spans = (
                    [(r.row, r.ids) for r in where] if name == "prefill" else [(where, range(args[2].tokens))]
                )
                for row, written in spans:
                    for slot in kv.slots:
                        slot[:, row : row + len(written)] = torch.nan
            raise self._error

        return call


@contextmanager
def failing(built: Engine, nth: int, error: BaseException) -> Iterator[Failing]:
    broken, real = Failing(built.backend, nth, error), built.backend
    built.backend = built.executor.backend = broken
    try:
        yield broken
    finally:
        built.backend = built.executor.backend = real


def lived(built: Engine) -> tuple[Window, list[Handle]]:
    """A window whose next plan can move, load, prefill, stash and evict."""
    window = built.window(Policy(name="balanced", kl_budget=10.0))
    handles = [window.append(words(count, seed)) for seed, count in enumerate((14, 33, 20, 41, 9))]
    window.commit()
    window.evict(handles[4])
    window.commit()
    return window, handles


def edit(window: Window, handles: list[Handle]) -> None:
    window.recall(handles[4])  # its antecedents as they were: loaded
    window.append(words(12, 8), before=handles[4])
    window.move(handles[4], before=handles[0])
    window.evict(handles[1])
    window.append(words(30, 9))
    window.clean_view(handles[3])


def edits_and_calls() -> int:
    with engine() as built, failing(built, -1, MemoryError()) as counting:
        window, handles = lived(built)
        counting.calls.clear()
        edit(window, handles)
        plan = window.commit()
        found = {op.op for op in plan.ops}
        assert found >= {"rotate", "keep", "prefill", "stash", "evict", "place_canonical"}
        assert {"read", "place", "prefill", "canonical"} == set(counting.calls)
        return len(counting.calls)


CALLS = edits_and_calls()


@pytest.mark.parametrize("nth", range(CALLS))
@pytest.mark.parametrize("error", [MemoryError(), RuntimeError(NO_MEMORY), KeyboardInterrupt()], ids=repr)
def test_a_failure_at_any_call_changes_nothing(nth: int, error: BaseException) -> None:
    with engine() as built:
        window, handles = lived(built)
        twin, before = window.fork(), snapshot(window)
        edit(window, handles)
        with failing(built, nth, error), pytest.raises((type(error), OutOfMemory)):
            window.commit()
        assert_unchanged(window, before)
        assert_unchanged(twin, before)
        edit(window, handles)
        window.commit()
        again = live(window)
    with engine() as built:
        window, handles = lived(built)
        edit(window, handles)
        window.commit()
        assert same_bits(again, live(window))


def test_a_lack_of_memory_says_what_it_is() -> None:
    """At whichever step it strikes: the caller is told that the edit was rolled back and what to do."""
    for nth in range(CALLS):
        with engine() as built:  # a new one: what a failed edit had stored is there for the next
            window, handles = lived(built)
            edit(window, handles)
            with failing(built, nth, RuntimeError(NO_MEMORY)), pytest.raises(OutOfMemory):
                window.commit()


def test_a_buffer_that_cannot_grow_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine(first_rows=64) as built:
        window = built.window()
        window.append(words(50))
        window.commit()
        before = snapshot(window)
        window.append(words(40, 1))
        with monkeypatch.context() as patch:

            def full(*_: Any) -> None:
                raise RuntimeError(NO_MEMORY)

            patch.setattr(WindowKV, "_allocate", full)
            with pytest.raises(OutOfMemory):
                window.commit()
        assert_unchanged(window, before)
        window.append(words(40, 1))
        window.commit()
        assert_exact(window)


class Poisoned:
    """A model of its own whose third layer does something bad when armed."""

    def __init__(self) -> None:
        self.model = tiny_model("llama")
        self.armed: Callable[[torch.Tensor], torch.Tensor] | None = None
        self.forwards = 0
        self.model.model.layers[2].register_forward_hook(self._hook)

    def _hook(self, module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        self.forwards += 1
        return self.armed(output) if self.armed else output


def nan(output: torch.Tensor) -> torch.Tensor:
    return output.index_fill(-1, torch.tensor([0]), torch.nan)


def no_memory(output: torch.Tensor) -> torch.Tensor:
    raise RuntimeError(NO_MEMORY)


def python_memory(output: torch.Tensor) -> torch.Tensor:
    raise MemoryError


FAILURES = [(nan, NonFinite), (no_memory, OutOfMemory), (python_memory, OutOfMemory)]


@pytest.fixture
def poisoned() -> Iterator[tuple[Poisoned, Engine]]:
    poison = Poisoned()
    with full_precision(poison.model), Engine.from_model(poison.model, tiny_tokenizer()) as built:
        yield poison, built


@pytest.mark.parametrize(("bad", "error"), FAILURES)
def test_a_model_that_fails_leaves_the_window_and_itself_as_they_were(
    poisoned: tuple[Poisoned, Engine], bad: Callable[[torch.Tensor], torch.Tensor], error: type[Exception]
) -> None:
    poison, built = poisoned
    window, handles = lived(built)
    attention, before = poison.model.config._attn_implementation, snapshot(window)
    edit(window, handles)
    poison.armed = bad
    with pytest.raises(error) as caught:
        window.commit()
    assert "rolled back" in str(caught.value)
    poison.armed = None
    assert_unchanged(window, before)
    assert poison.model.config._attn_implementation == attention
    assert [m for m in poison.model.modules() if isinstance(m, nn.Linear) and "forward" in m.__dict__] == []
    window.policy = Policy(name="exact")
    window.append(words(11, 3))
    window.commit()
    assert_exact(window)


@pytest.mark.parametrize(("bad", "error"), FAILURES)
def test_a_prompt_that_fails_is_not_in_the_window(
    poisoned: tuple[Poisoned, Engine], bad: Callable[[torch.Tensor], torch.Tensor], error: type[Exception]
) -> None:
    poison, built = poisoned
    window, _ = lived(built)
    before, poison.armed = snapshot(window), bad
    with pytest.raises(error):
        window.generate(words(5))
    poison.armed = None
    assert_unchanged(window, before)
    assert not window.streaming
    assert window.generate(words(5), max_new_tokens=2)


def fail_at(poison: Poisoned, first: int, last: int) -> None:
    """Arm a NaN for the forwards from ``first`` to ``last``, counted from now."""
    start = poison.forwards

    def sometimes(output: torch.Tensor) -> torch.Tensor:
        return nan(output) if first <= poison.forwards - start <= last else output

    poison.armed = sometimes


def test_an_error_between_two_tokens_keeps_what_was_said(poisoned: tuple[Poisoned, Engine]) -> None:
    poison, built = poisoned
    window = built.window("exact")
    prompt = words(20)
    fail_at(poison, 4, 4)  # the prompt, two tokens, then this one
    said = list[str]()
    with pytest.raises(NonFinite):
        said.extend(window.stream(prompt, max_new_tokens=8, stop=False))
    assert len(said) == 3
    assert len(window) == 20 + 3
    assert_exact(window)
    assert window.last_answer is not None
    assert window.last_answer.tokens == 3


def test_an_answer_that_cannot_be_closed_is_dropped(poisoned: tuple[Poisoned, Engine]) -> None:
    poison, built = poisoned
    window = built.window("exact")
    window.append(words(20))
    window.commit()
    before = live(window)
    fail_at(poison, 4, 10**6)
    with pytest.raises(NonFinite):
        window.generate(words(6, 1), max_new_tokens=8, stop=False)
    poison.armed = None
    assert_prompted(window, before)
    assert window.generate(max_new_tokens=3, stop=False)
    assert_exact(window)


def assert_prompted(window: Window, before: KVBlock) -> None:
    """The window holds the prompt behind what was there, and nothing of an answer."""
    assert same_bits(live(window).part(0, before.tokens), before)
    assert window.ids()[before.tokens :].tolist() == ids(6, 1).tolist()
    assert_exact(window)
    assert window.content == window.committed
    assert not window.streaming
    assert window.last_answer is None


def test_an_answer_that_is_closed_early_and_cannot_be_is_dropped(poisoned: tuple[Poisoned, Engine]) -> None:
    poison, built = poisoned
    window = built.window("exact")
    window.append(words(20))
    window.commit()
    before, stream = live(window), window.stream(words(6, 1), max_new_tokens=8, stop=False)
    next(stream)
    poison.armed = nan
    with pytest.raises(NonFinite):
        stream.close()
    poison.armed = None
    assert_prompted(window, before)


def test_an_answer_that_would_not_fit_appends_nothing() -> None:
    with engine() as built:
        window = built.window(max_tokens=60)
        window.append(words(40))
        window.commit()
        before = snapshot(window)
        with pytest.raises(TooLong):
            window.generate(words(10), max_new_tokens=11)
        assert_unchanged(window, before)
        window.generate(words(10), max_new_tokens=10, stop=False)
        assert len(window) == 60


def test_a_failed_commit_also_forgets_the_edits_it_was_made_of() -> None:
    with engine() as built:
        window, handles = lived(built)
        edit(window, handles)
        with failing(built, 0, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
            window.commit()
        assert window.commit().tokens()["recomputed"] == 0
        window.evict(handles[1])  # was evicted by the edits that failed


def test_rollback_reaches_rows_in_front_of_the_old_start() -> None:
    """A window that starts late may grow to the front: those rows were nobody's, and stay so."""
    with engine() as built:
        window = built.window(Policy(name="fast"))
        gone, rest = window.append(words(30, 1)), window.append(words(40, 2))
        window.commit()
        window.evict(gone)
        window.commit()
        assert window.kv.start == 30
        before = snapshot(window)
        window.append(words(10, 3), before=rest)
        with failing(built, 0, KeyboardInterrupt()) as broken, pytest.raises(KeyboardInterrupt):
            window.commit()
        assert broken.calls == ["prefill"]
        assert_unchanged(window, before)


def test_the_shared_models_were_not_touched_by_any_of_this() -> None:
    assert shared_model("llama", torch.float64).config._attn_implementation != "agentkv"


def test_a_rollback_finds_what_a_change_has_divided() -> None:
    """Changed twice, shown clean and pinned, all of it only noted: nothing stays, nothing is computed."""
    with engine() as built:
        window = built.window()
        window.append(words(40, 1))
        text = words(60, 2).split()
        changed = first = window.append(" ".join(text))
        window.commit()
        window.clean_view(first)
        window.pin(first)
        for at in (30, 10):
            text[at] = "w20"
            changed = window.replace(changed, " ".join(text))
        with failing(built, 0, MemoryError()), pytest.raises(OutOfMemory):
            window.commit()
        entry = window.content.live()[-1]
        assert (entry.handle, entry.pinned, entry.clean) == (first, False, False)
        assert {op.op for op in window.plan().ops} == {"keep"}


def test_an_answer_that_fails_before_its_first_token_leaves_the_last_row() -> None:
    """Nothing is new in front of it, so the last token is run again, over its own row."""
    with engine() as built:
        window = built.window()
        window.append(words(50))
        window.commit()
        before = snapshot(window)
        with failing(built, 1, NonFinite("nan", "numbers", "nothing")) as broken, pytest.raises(NonFinite):
            window.generate(max_new_tokens=2)
        assert broken.calls == ["read", "prefill", "place"]
        assert_unchanged(window, before)
