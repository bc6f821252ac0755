"""A window that is handed whole prompts: who is recognised, what is computed, and what a policy promises."""

from __future__ import annotations

import random
from collections import Counter
from itertools import accumulate

import numpy as np
import pytest
import torch
from agentkv_orchestrator.plan import Plan
from agentkv_orchestrator.policy import Policy
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkv import Engine, Window
from agentkv.diagnose.documents import readmes
from agentkv.errors import InvalidInput, PinnedChunk, TooLong
from agentkv.handles import Handle
from agentkv.inputs import Ids
from agentkv.store.base import Key
from bench.traces.generated import header
from tests.runtime.cases import STRICT, assert_exact, assert_unchanged, engine, ids, snapshot
from tests.strategies import seeds

BODY = [ids(150, seed) for seed in range(4)]
"""Messages that every prompt below has."""


CHANGES = ("header", "edit", "insert", "again", "remove", "half", "turn")


def show(window: Window, *parts: Ids, edges: bool = True) -> tuple[Handle, ...]:
    stops = list(accumulate(map(len, parts)))[:-1] if edges else []
    return window.set_prompt(np.concatenate(parts), stops)


LOOSE = Policy(name="balanced", kl_budget=10.0)
"""What is found is asked here; how much of it a budget computes again is the error model's."""


def prefilled(plan: Plan) -> int:
    return sum(op.tokens for op in plan.ops if op.op == "prefill")


def test_below_a_header_that_changes_nothing_is_computed() -> None:
    with engine() as built:
        window = built.window(LOOSE)
        handles = show(window, ids(40, 100), *BODY)
        window.commit()
        for turn, size in enumerate((43, 37, 90)):
            shown = show(window, ids(size, 101 + turn), *BODY)
            assert shown[1:] == handles[1:]
            assert shown[0] != handles[0]
            plan = window.commit()
            assert prefilled(plan) == size
            assert plan.predicted_kl <= window.policy.kl_budget
            assert window.ids().tolist() == np.concatenate([ids(size, 101 + turn), *BODY]).tolist()
            handles = shown


@pytest.mark.parametrize("policy", ["exact", STRICT])
def test_a_policy_without_an_error_computes_all_behind_the_change(policy: object) -> None:
    with engine() as built:
        window = built.window(policy)  # type: ignore[arg-type]
        show(window, ids(40, 100), *BODY)
        window.commit()
        show(window, ids(44, 101), *BODY)
        assert prefilled(window.commit()) == 44 + sum(map(len, BODY))
        assert_exact(window)
        show(window, ids(44, 101), *BODY, ids(20, 102))
        assert prefilled(window.commit()) == 20
        assert_exact(window)


def test_without_boundaries_content_is_recognised_all_the_same() -> None:
    with engine() as built:
        window = built.window(LOOSE)
        show(window, ids(40, 100), *BODY, edges=False)
        window.commit()
        show(window, ids(57, 101), *BODY, edges=False)
        plan = window.commit()
        assert prefilled(plan) < 57 + 64
        assert window.ids().tolist() == np.concatenate([ids(57, 101), *BODY]).tolist()


def test_a_part_of_a_live_chunk_stays_where_its_rest_changed() -> None:
    with engine() as built:
        window = built.window("balanced")
        show(window, ids(40, 100), *BODY)
        window.commit()
        edited = BODY[1].copy()
        edited[75] = edited[75] % 40 + 14 if edited[75] != edited[75] % 40 + 14 else 20
        show(window, ids(40, 100), BODY[0], edited, *BODY[2:])
        plan = window.commit()
        assert prefilled(plan) < 64
        assert window.ids().tolist() == np.concatenate([ids(40, 100), BODY[0], edited, *BODY[2:]]).tolist()


def test_tools_in_another_order_keep_their_rows() -> None:
    with engine() as built:
        window = built.window("fast")
        first = show(window, ids(40, 100), *BODY)
        window.commit()
        second = show(window, ids(40, 100), BODY[2], BODY[0], BODY[3], BODY[1])
        assert Counter(second) == Counter(first)
        assert prefilled(window.commit()) == 0


def test_what_a_prompt_left_out_comes_back_from_the_store() -> None:
    with engine() as built:
        window = built.window("fast")
        first = show(window, ids(40, 100), *BODY)
        window.commit()
        show(window, ids(40, 100), BODY[0])
        window.commit()
        again = show(window, ids(40, 100), *BODY)
        assert prefilled(window.commit()) == 0
        assert again[:2] == first[:2]
        assert window.content.get(first[3].id) is not None
        assert window.ids().tolist() == np.concatenate([ids(40, 100), *BODY]).tolist()


def test_a_part_of_a_stored_chunk_is_taken_from_it() -> None:
    """The slice is a forward's KV behind the tokens that stood in front of it, and is stored as just that."""
    with engine(chat=True) as built:
        whole = ids(150, 7)
        window = built.window("fast")
        kept = window.append_ids(ids(50, 8))
        gone = window.append_ids(whole)
        window.commit()
        window.evict(gone)
        window.commit()
        part = window.append_ids(whole[60:])
        chunk = window.content.get(part.id).parts[0][1]  # type: ignore[union-attr]
        (key, (note, _, _)), *others = built.store.held([chunk.id]).items()
        assert not others
        assert (key.kind, note.context.tokens) == ("conditioned", 50 + 60)  # type: ignore[union-attr]
        assert prefilled(window.commit()) == 0
        assert window.ids().tolist() == [*ids(50, 8), *whole[60:]]
        head = built.register(whole[:60], "note").id
        front = [window.content.get(kept.id).parts[0][1].id, head]  # type: ignore[union-attr]
        assert list(note.context.chunks) == front  # type: ignore[union-attr]
        fresh = built.window("exact")
        for piece in (ids(50, 8), whole[:60], whole[60:]):
            fresh.append_ids(piece)
        fresh.commit()
        assert_exact(fresh)
        found = built.store.get(key)
        assert found is not None
        stored = found.entry
        row = fresh.kv.start + 110
        for ours, theirs in zip(stored.slots, fresh.kv.view(row, row + 90).slots, strict=True):  # type: ignore
            assert torch.allclose(ours, theirs, atol=1e-9)


def test_a_part_of_a_canonical_is_behind_the_sink() -> None:
    with engine(chat=True) as built:
        whole = ids(150, 7)
        window = built.window("fast")
        window.append_ids(ids(50, 8))
        gone = window.append_ids(whole)
        window.commit()
        window.evict(gone)
        window.commit()
        window.settle()
        chunk = window.content.get(gone.id).parts[0][1]  # type: ignore[union-attr]
        assert Key("canonical", chunk.id) in built.store.held([chunk.id])
        head, middle = window.append_ids(whole[:70]), window.append_ids(whole[70:])
        of_head, of_middle = (window.content.get(h.id).parts[0][1].id for h in (head, middle))  # type: ignore
        assert [k.kind for k in built.store.held([of_head])] == ["canonical"]
        (note,) = (n.note for k, n in built.store.held([of_middle]).items() if k.kind == "conditioned")
        assert note.context.tokens == len(built.sink) + 70  # type: ignore[union-attr]
        assert built.chunks.ids(next(iter(note.context.chunks))).tolist() == built.sink.tolist()  # type: ignore
        assert prefilled(window.commit()) == 0


def refusals(window: Window, pinned: bool) -> list[tuple[type[Exception], Ids, list[int]]]:
    found: list[tuple[type[Exception], Ids, list[int]]] = [
        (InvalidInput, np.array([1.5]), []),
        (InvalidInput, ids(9), [10]),
        (InvalidInput, ids(9), [-1]),
        (TooLong, ids(window.max_tokens + 1), []),
    ]
    return [*found, (PinnedChunk, ids(30, 5), [])] if pinned else found


def test_a_prompt_that_is_refused_changes_nothing() -> None:
    with engine() as built:
        window = built.window("balanced", max_tokens=900)
        handles = show(window, ids(40, 100), *BODY)
        window.commit()
        window.pin(handles[2])
        window.commit()
        before = snapshot(window)
        for error, text, edges in refusals(window, pinned=True):
            with pytest.raises(error):
                window.set_prompt(text, edges)
            assert_unchanged(window, before)
        edited = BODY[0].copy()
        edited[80] += 1
        with pytest.raises(PinnedChunk):  # a chunk was divided before that was found
            show(window, edited, ids(30, 5))
        assert_unchanged(window, before)
        assert show(window, ids(33, 5), BODY[1])[1] == handles[2]


def test_answers_are_recognised_in_the_next_prompt() -> None:
    with engine() as built:
        window = built.window("exact")
        show(window, ids(40, 100), *BODY)
        window.generate(max_new_tokens=40, stop=False)
        said = window.ids()[-40:]
        window.set_prompt(np.concatenate([window.ids(), ids(10, 3)]))
        plan = window.commit()
        assert prefilled(plan) <= 10 + 40
        assert window.ids()[-50:].tolist() == [*said, *ids(10, 3)]


def test_what_nothing_holds_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentkv.engine.FEWEST_CHUNKS", 40)
    with engine(store_bytes=1) as built:
        built._sweep_at = 40
        kept = built.window()
        handle = kept.append_ids(ids(60, 1))
        for seed in range(200):
            with built.window() as window:
                window.append_ids(ids(60, 1000 + seed))
            assert len(built.chunks) <= 130
        kept.commit()
        assert kept.ids()[-60:].tolist() == ids(60, 1).tolist()
        assert handle.tokens == 60


@settings(max_examples=12, deadline=None)
@given(
    seeds,
    st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(0, 99)), min_size=1, max_size=6),
    st.booleans(),
)
def test_whatever_the_next_prompt_is_it_is_what_the_window_holds(
    seed: int, changes: list[tuple[str, int]], told: bool
) -> None:
    """An exact window is a re-prefill's, a fast one has the tokens; both whatever came before."""
    parts = [ids(size, seed % 1000 + size) for size in (20, 75, 40, 90)]
    with engine() as built:
        windows = [built.window("exact"), built.window("fast")]
        for change, which in changes:
            parts = changed(parts, change, which)
            for window in windows:
                handles = show(window, *parts, edges=told)
                assert sum(h.tokens for h in handles) == len(window) == sum(map(len, parts))
                window.commit()
                assert window.ids().tolist() == np.concatenate(parts).tolist()
        assert_exact(windows[0])


def changed(parts: list[Ids], change: str, which: int) -> list[Ids]:
    """The parts after one change, never none."""
    at, fresh = which % len(parts), ids(5 + which % 60, 5000 + which)
    match change:
        case "header":
            return [fresh, *parts[1:]]
        case "edit":
            middle = parts[at].copy()
            middle[len(middle) // 2] = 14 + (middle[len(middle) // 2] - 13) % 50
            return [*parts[:at], middle, *parts[at + 1 :]]
        case "insert":
            return [*parts[:at], fresh, *parts[at:]]
        case "again":
            return [*parts, parts[at]]
        case "remove" if len(parts) > 1:
            return [*parts[:at], *parts[at + 1 :]]
        case "half":
            return [*parts[:at], parts[at][len(parts[at]) // 2 :], *parts[at + 1 :]]
    return [*parts[at:], *parts[:at]]


@pytest.mark.slow
def test_an_agent_whose_header_changes_stays_inside_its_budget() -> None:
    """Audited, on the embedded model: real documents below a header of another length each turn."""
    documents = [text[:900] for _, text in readmes()][:4]
    rng = random.Random(0)
    with Engine.from_pretrained() as built:
        window = built.window("balanced")
        tokenizer = built.tokenizer
        parts = [np.array(tokenizer("\n" + text)["input_ids"], dtype=np.int64) for text in documents]
        question = np.array(tokenizer("\nIn short, the first text is about")["input_ids"], dtype=np.int64)
        for turn in range(3):
            front = np.array(tokenizer(header(rng, "agent", turn))["input_ids"], dtype=np.int64)
            show(window, front, *parts, question)
            plan = window.commit()
            found = window.audit(attribute=False)
            assert plan.predicted_kl <= window.policy.kl_budget
            assert found.kl <= window.policy.kl_budget
            if turn:
                assert prefilled(plan) < len(window) / 2
