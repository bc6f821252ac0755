"""Bad input: refused at once, by a typed error that says what to do, with the window as it was."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from agentkv_orchestrator.errors import PlanError, PolicyError
from agentkv_orchestrator.policy import Policy
from pydantic import ValidationError

from agentkv import AgentKVError, Engine, Handle, Window
from agentkv.errors import (
    AlreadyEvicted,
    BadRank,
    Busy,
    ClosedError,
    EmptyChunk,
    ForeignChunk,
    InvalidInput,
    PinnedChunk,
    TooLong,
)
from agentkv.media import Tokens
from agentkv.patches import Budget
from agentkv.showing import Message
from agentkv.store.memory import MemoryStore
from tests.models import VOCAB, full_precision, tiny_model, tiny_tokenizer
from tests.runtime.cases import (
    STRICT,
    assert_exact,
    assert_kv,
    assert_unchanged,
    engine,
    ids,
    live,
    model,
    reprefilled,
    snapshot,
    words,
)


class Rig:
    """A window with three live messages, one of them pinned, and an evicted one."""

    def __init__(self, built: Engine) -> None:
        self.engine = built
        self.window = built.window(max_tokens=200)
        self.pinned = self.window.append(words(20, 1), kind="system", pin=True)
        self.gone = self.window.append(words(30, 2))
        self.a, self.b = self.window.append(words(25, 3)), self.window.append(words(15, 4))
        self.window.commit()
        self.window.evict(self.gone)
        self.window.commit()

    @property
    def foreign(self) -> Handle:
        """A handle of another window of this engine."""
        return self.engine.window().append(words(5))


@pytest.fixture
def rig() -> Iterator[Rig]:
    with engine() as built:
        yield Rig(built)


BAD: dict[str, tuple[type[Exception], Callable[[Rig, Window], object]]] = {
    "append nothing": (EmptyChunk, lambda r, w: w.append("")),
    "append blanks": (EmptyChunk, lambda r, w: w.append(" \n\t ")),
    "append bytes": (InvalidInput, lambda r, w: w.append(b"w3")),  # type: ignore[arg-type]
    "append none": (InvalidInput, lambda r, w: w.append(None)),  # type: ignore[arg-type]
    "append a list": (InvalidInput, lambda r, w: w.append(["w3"])),  # type: ignore[arg-type]
    "append more than the window holds": (TooLong, lambda r, w: w.append(words(141))),
    "append in front of an evicted one": (AlreadyEvicted, lambda r, w: w.append(words(3), before=r.gone)),
    "append in front of a foreign one": (ForeignChunk, lambda r, w: w.append(words(3), before=r.foreign)),
    "append in front of a number": (InvalidInput, lambda r, w: w.append(words(3), before=3)),  # type: ignore[arg-type]
    "ids outside of the vocabulary": (InvalidInput, lambda r, w: w.append_ids(np.array([3, VOCAB]))),
    "ids below zero": (InvalidInput, lambda r, w: w.append_ids(np.array([3, -1]))),
    "ids of 32 bits": (InvalidInput, lambda r, w: w.append_ids(ids(4).astype(np.int32))),
    "ids that are floats": (InvalidInput, lambda r, w: w.append_ids(np.array([3.0, 4.0]))),
    "ids in a list": (InvalidInput, lambda r, w: w.append_ids([3, 4])),  # type: ignore[arg-type]
    "ids in a tensor": (InvalidInput, lambda r, w: w.append_ids(torch.tensor([3, 4]))),  # type: ignore[arg-type]
    "ids in a matrix": (InvalidInput, lambda r, w: w.append_ids(ids(4).reshape(2, 2))),
    "no ids": (EmptyChunk, lambda r, w: w.append_ids(np.empty(0, dtype=np.int64))),
    "evict what is pinned": (PinnedChunk, lambda r, w: w.evict(r.pinned)),
    "evict twice": (AlreadyEvicted, lambda r, w: w.evict(r.gone)),
    "evict a foreign one": (ForeignChunk, lambda r, w: w.evict(r.foreign)),
    "evict text": (InvalidInput, lambda r, w: w.evict("w3")),  # type: ignore[arg-type]
    "pin what is gone": (AlreadyEvicted, lambda r, w: w.pin(r.gone)),
    "pin a foreign one": (ForeignChunk, lambda r, w: w.pin(r.foreign)),
    "recall what is here": (InvalidInput, lambda r, w: w.recall(r.a)),
    "recall a foreign one": (ForeignChunk, lambda r, w: w.recall(r.foreign)),
    "recall in front of itself": (AlreadyEvicted, lambda r, w: w.recall(r.gone, before=r.gone)),
    "move what is gone": (AlreadyEvicted, lambda r, w: w.move(r.gone)),
    "move in front of itself": (InvalidInput, lambda r, w: w.move(r.a, before=r.a)),
    "move in front of what is gone": (AlreadyEvicted, lambda r, w: w.move(r.a, before=r.gone)),
    "reorder with a repetition": (InvalidInput, lambda r, w: w.reorder([r.a, r.b, r.a])),
    "reorder with one that is gone": (AlreadyEvicted, lambda r, w: w.reorder([r.a, r.gone])),
    "reorder with a foreign one": (ForeignChunk, lambda r, w: w.reorder([r.a, r.foreign])),
    "replace what is gone": (AlreadyEvicted, lambda r, w: w.replace(r.gone, words(3))),
    "replace a foreign one": (ForeignChunk, lambda r, w: w.replace(r.foreign, words(3))),
    "replace a number": (InvalidInput, lambda r, w: w.replace(3, words(3))),  # type: ignore[arg-type]
    "replace by nothing": (EmptyChunk, lambda r, w: w.replace(r.a, "")),
    "replace by bytes": (InvalidInput, lambda r, w: w.replace(r.a, b"w3")),  # type: ignore[arg-type]
    "replace by too much": (TooLong, lambda r, w: w.replace(r.a, words(166))),
    "slide below the pinned": (TooLong, lambda r, w: w.slide(19)),
    "clean view of one that is gone": (AlreadyEvicted, lambda r, w: w.clean_view(r.gone)),
    "learn orders of distant ones": (InvalidInput, lambda r, w: w.learn_orders([r.pinned, r.b])),
    "learn orders of nothing": (InvalidInput, lambda r, w: w.learn_orders([])),
    "learn orders with a repetition": (InvalidInput, lambda r, w: w.learn_orders([r.a, r.a])),
    "learn removal of one that is gone": (AlreadyEvicted, lambda r, w: w.learn_removal(r.gone)),
    "ask about the first message": (InvalidInput, lambda r, w: w.audit(r.pinned)),
    "ask about one that is gone": (AlreadyEvicted, lambda r, w: w.audit(r.gone)),
    "an answer that does not fit": (TooLong, lambda r, w: w.generate(max_new_tokens=141)),
    "a prompt that does not fit": (TooLong, lambda r, w: w.generate(words(141))),
    "a prompt and an answer that do not fit": (
        TooLong,
        lambda r, w: w.generate(words(100), max_new_tokens=41),
    ),
    "an empty prompt": (EmptyChunk, lambda r, w: w.generate("")),
    "a prompt that is a number": (InvalidInput, lambda r, w: w.generate(3)),  # type: ignore[arg-type]
    "a prompt of bytes": (InvalidInput, lambda r, w: w.generate(b"w3")),  # type: ignore[arg-type]
    "a longer window than there are positions": (TooLong, lambda r, w: r.engine.window(max_tokens=4097)),
    "a window of less than nothing": (TooLong, lambda r, w: r.engine.window(max_tokens=-1)),
    "a window of nothing": (TooLong, lambda r, w: r.engine.window(max_tokens=0)),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_and_changes_nothing(name: str, rig: Rig) -> None:
    error, call = BAD[name]
    before = snapshot(rig.window)
    with pytest.raises(error) as caught:
        call(rig, rig.window)
    assert isinstance(caught.value, AgentKVError)
    assert all(str(part).strip() for part in (caught.value.got, caught.value.expected, caught.value.do))
    assert_unchanged(rig.window, before)
    rig.window.recall(rig.gone)  # and all goes on
    rig.window.commit()


def test_refused_calls_do_not_disturb_noted_edits(rig: Rig) -> None:
    """What was noted and not yet carried out survives a call that is refused."""
    new = rig.window.append(words(9, 7))
    rig.window.move(rig.b, before=rig.a)
    noted = rig.window.content
    for name, (error, call) in BAD.items():
        if name.startswith(("learn", "ask")):  # these carry out what was noted before they look
            continue
        with pytest.raises(error):
            call(rig, rig.window)
        assert rig.window.content == noted
    assert rig.window.content != rig.window.committed
    assert [entry.handle for entry in rig.window.content.live()] == [rig.pinned, rig.b, rig.a, new]


def test_an_unknown_format_is_refused(rig: Rig) -> None:
    with pytest.raises(PlanError) as caught:
        rig.window.explain("pdf")  # type: ignore[arg-type]
    assert all((caught.value.got, caught.value.expected, caught.value.do))


def test_a_pin_can_be_taken_out_and_put_in(rig: Rig) -> None:
    rig.window.pin(rig.a)
    with pytest.raises(PinnedChunk):
        rig.window.evict(rig.a)
    assert rig.window.slide(45) == [rig.b]
    rig.window.pin(rig.pinned, on=False)
    rig.window.evict(rig.pinned)
    rig.window.commit()
    assert len(rig.window) == 25


def test_a_handle_of_another_engine_is_foreign(rig: Rig) -> None:
    """Even when both engines count alike, so that the numbers agree."""
    with engine() as other:
        theirs = Rig(other)
        assert theirs.a.id == rig.a.id
        for call in (rig.window.evict, rig.window.recall, rig.window.move, rig.window.learn_removal):
            with pytest.raises(ForeignChunk):
                call(theirs.a)


def test_an_empty_window_answers_nothing() -> None:
    with engine() as built:
        window = built.window()
        with pytest.raises(EmptyChunk, match="empty window"):
            window.generate()
        with pytest.raises(InvalidInput, match="never committed"):
            window.explain()
        with pytest.raises(InvalidInput):
            window.audit()
        assert window.generate("w5", max_new_tokens=1, stop=False)


def test_the_last_position_can_be_used_and_no_further_one() -> None:
    tiny = tiny_model("llama", max_position_embeddings=128)
    with full_precision(tiny), Engine.from_model(tiny, tiny_tokenizer()) as built:
        window = built.window("exact")
        window.append(words(100))
        window.generate(words(20, 1), max_new_tokens=8, stop=False)
        assert len(window) == window.max_tokens == 128
        assert_exact_kv(window)
        before = snapshot(window)
        with pytest.raises(TooLong):
            window.append("w5")
        with pytest.raises(TooLong):
            window.generate(max_new_tokens=1)
        assert_unchanged(window, before)


def assert_exact_kv(window: Window) -> None:
    """As `assert_exact`, for a window with no position left to ask a question at."""
    assert_kv(live(window), reprefilled(window))


def test_a_window_that_has_wandered_may_still_be_filled() -> None:
    """Its first row is late in the buffer: the rows must come back rather than run out."""
    tiny = tiny_model("llama", max_position_embeddings=128)
    with full_precision(tiny), Engine.from_model(tiny, tiny_tokenizer()) as built:
        window = built.window(STRICT)
        for turn in range(12):
            window.slide(60)
            window.append(words(40, turn))
            window.commit()
        window.append(words(128 - len(window), 99))
        window.commit()
        assert len(window) == 128
        assert_exact_kv(window)


EDITS: dict[str, Callable[[Rig, Window], object]] = {
    "append": lambda r, w: w.append(words(3)),
    "append_ids": lambda r, w: w.append_ids(ids(3)),
    "set_prompt": lambda r, w: w.set_prompt(ids(3)),
    "show": lambda r, w: w.show([Message((Tokens(ids(3)),), "note")]),
    "evict": lambda r, w: w.evict(r.a),
    "recall": lambda r, w: w.recall(r.gone),
    "move": lambda r, w: w.move(r.a),
    "pin": lambda r, w: w.pin(r.a),
    "reorder": lambda r, w: w.reorder([r.b, r.a]),
    "replace": lambda r, w: w.replace(r.a, words(3)),
    "slide": lambda r, w: w.slide(),
    "clean_view": lambda r, w: w.clean_view(r.a),
    "commit": lambda r, w: w.commit(),
    "settle": lambda r, w: w.settle(),
    "save": lambda r, w: w.save(),
    "learn_orders": lambda r, w: w.learn_orders([r.a]),
    "learn_removal": lambda r, w: w.learn_removal(r.a),
    "undo": lambda r, w: w.undo(),
    "redo": lambda r, w: w.redo(),
    "export": lambda r, w: w.export("/nonexistent/folder"),
    "fork": lambda r, w: w.fork(),
    "generate": lambda r, w: w.generate(words(3)),
    "stream": lambda r, w: next(w.stream(words(3))),
    "audit": lambda r, w: w.audit(),
    "disposable": lambda r, w: w.disposable(r.a),
}


@pytest.mark.parametrize("name", sorted({*EDITS} - {"fork"}))
def test_nothing_is_edited_in_the_middle_of_an_answer(name: str, rig: Rig) -> None:
    stream = rig.window.stream(words(5), max_new_tokens=6, stop=False)
    said = next(stream)
    content, rows = rig.window.content, (rig.window.kv.start, rig.window.kv.end)
    with pytest.raises(Busy) as caught:
        EDITS[name](rig, rig.window)
    assert "close" in caught.value.do
    assert (rig.window.content, (rig.window.kv.start, rig.window.kv.end)) == (content, rows)
    answer = said + "".join(stream)
    with engine() as fresh:
        assert answer == Rig(fresh).window.generate(words(5), max_new_tokens=6, stop=False)
    rig.window.append(words(3))


@pytest.mark.parametrize("name", EDITS)
def test_a_closed_window_refuses_everything(name: str, rig: Rig) -> None:
    rig.window.close()
    rig.window.close()
    with pytest.raises(ClosedError):
        EDITS[name](rig, rig.window)


def test_looking_at_a_closed_window_is_refused_too(rig: Rig) -> None:
    """Its rows are gone: sizes and ids of a window that is no more would mislead."""
    rig.window.close()
    for look in (rig.window.plan, rig.window.stats, rig.window.ids, rig.window.explain):
        with pytest.raises(ClosedError):
            look()


def test_closing_a_window_in_the_middle_of_an_answer_ends_the_answer(rig: Rig) -> None:
    stream = rig.window.stream(words(5), max_new_tokens=6, stop=False)
    next(stream)
    rig.window.close()
    with pytest.raises(AgentKVError):
        list(stream)
    assert rig.engine.window().generate(words(5), max_new_tokens=1, stop=False)


def test_a_closed_engine_opens_no_window(rig: Rig) -> None:
    rig.engine.close()
    rig.engine.close()
    with pytest.raises(ClosedError):
        rig.engine.window()
    with pytest.raises(ClosedError):
        rig.window.append(words(3))


def test_every_edit_is_in_these_tables() -> None:
    """A new method of a window has to say what it does in the middle of an answer, and when closed."""
    looks = {
        "plan",
        "explain",
        "stats",
        "history",
        "stale",
        "related",
        "ids",
        "runs",
        "close",
        "editing",
        "cut",
        "cut_parts",
        "agenerate",
        "astream",
    }
    looks |= {"error_in_front", "require_open", "holds"}
    public = {name for name, _ in inspect.getmembers(Window, inspect.isfunction) if not name.startswith("_")}
    assert public - looks == set(EDITS)


@pytest.mark.parametrize(
    "sampling",
    [
        {"max_new_tokens": 0},
        {"temperature": -1.0},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": 5},
        {"max_new_tokens": "many"},
        {"temperature": float("nan")},
    ],
    ids=str,
)
def test_unknown_and_impossible_sampling_is_refused_at_the_call(sampling: dict[str, Any], rig: Rig) -> None:
    before = snapshot(rig.window)
    with pytest.raises(ValidationError) as caught:
        rig.window.stream(words(5), **sampling)
    assert next(iter(sampling)) in str(caught.value)
    assert_unchanged(rig.window, before)


SETTINGS: list[dict[str, Any]] = [
    {"patch_ranks": 8},
    {"backend": "no"},
    {"store_bytes": 0},
    {"patch_rank": 0},
]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_unknown_and_impossible_settings_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(setting))):
        Engine.from_model(model("llama", torch.float64), tiny_tokenizer(), **setting)


def test_a_patch_of_less_than_rank_one_is_refused() -> None:
    with pytest.raises(BadRank):
        Budget(rank=0)


@pytest.mark.parametrize("policy", ["wild", "", None, 3, {"name": "exact"}])
def test_an_unknown_policy_is_refused(policy: Any) -> None:
    with engine() as built:
        with pytest.raises(PolicyError) as caught:
            built.window(policy)
        assert all((caught.value.got, caught.value.expected, caught.value.do))
        with pytest.raises(ValidationError):
            Policy(name="balanced", kl_budget=-1)


def test_a_store_filled_by_another_model_is_a_miss() -> None:
    """Same shapes, other weights: nothing of it may end up in this model's window."""
    store, note = MemoryStore(), words(30, 2)

    def use(seed: int) -> Window:
        tiny = tiny_model("llama", seed=seed)
        with full_precision(tiny):
            built = Engine.from_model(tiny, tiny_tokenizer(), store=store)
            window = built.window(STRICT)
            window.append(words(40, 1))
            handle = window.append(note)
            window.commit()
            window.evict(handle)
            window.commit()
            window.settle()
            window.append(note)
            plan = window.commit()
            assert_exact(window)
            assert {"load", "apply_patch"} & {op.op for op in plan.ops} or plan.tokens()["recomputed"]
            return window

    first, second = use(0), use(1)
    assert first.usage.recomputed == second.usage.recomputed  # it found nothing to start with
    theirs = {p.chunk.id for p in first.graph.placements}
    assert not theirs & {p.chunk.id for p in second.graph.placements}


def test_two_engines_of_one_model_share_a_store() -> None:
    store, note = MemoryStore(), words(30, 2)
    with engine(store=store) as first, engine(store=store) as second:
        window = first.window(STRICT)
        window.append(words(40, 1))
        handle = window.append(note)
        window.commit()
        window.evict(handle)
        window.commit()
        other = second.window(STRICT)
        other.append(words(40, 1))
        other.append(note)
        assert other.commit().tokens() == {"reused": 0, "rotated": 0, "patched": 30, "recomputed": 40}
        assert_exact(other)
        second.window(STRICT).settle()


def test_idle_work_passes_over_what_another_engine_stored() -> None:
    """It cannot know those tokens, so there is nothing it could form."""
    store = MemoryStore()
    with engine("llama", store=store) as first, engine("qwen3", store=store) as second:
        window = first.window()
        window.append(words(20, 1))
        note = window.append(words(30, 2))
        window.commit()
        window.evict(note)
        window.commit()
        held = store.keys()
        second.window().settle()
        assert store.keys() == held
