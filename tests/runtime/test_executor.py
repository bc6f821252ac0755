"""Random edits over the recording backend: the right tokens in the right rows, by the calls the plan says."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest
from agentkv_orchestrator.policy import Policy
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentkv import Window
from agentkv.kv import KVBlock
from agentkv.store.base import Entry, Found, Key, Stored
from agentkv.store.memory import MemoryStore
from agentkv.testing import RecordingEngine, kv_block, recording_engine, rows
from tests.runtime.cases import words
from tests.runtime.script import EDITS, Edit, Script, scripts

EVERY = (*EDITS, "clean", "learn", "drop")
POLICIES = st.builds(
    Policy,
    name=st.sampled_from(["exact", "balanced", "fast"]),
    kl_budget=st.sampled_from([0.0, 0.02, 0.05, 1.0]),
    stash=st.booleans(),
)


def expected(engine: RecordingEngine, text: str) -> list[int]:
    return list(engine.tokenizer(text)["input_ids"])


def assert_shows(window: Window, text: str) -> None:
    engine = window.engine
    assert isinstance(engine, RecordingEngine)
    assert rows(window.kv) == expected(engine, text)
    assert window.ids().tolist() == expected(engine, text)
    assert len(window) == window.graph.tokens == window.kv.end - window.kv.start
    assert [p.row for p in window.graph.placements][:1] == [window.kv.start][: len(window.graph.placements)]


@settings(max_examples=120, deadline=None)
@given(script=scripts(EVERY, most=25), policy=POLICIES)
def test_rows_hold_what_is_wanted_after_any_edits(script: list[Edit], policy: Policy) -> None:
    with recording_engine() as engine:
        player = Script(engine.window(policy))
        for edit in script:
            player.one(edit)
            if edit[0] == "commit":
                assert_shows(player.window, player.text)
        player.window.commit()
        assert_shows(player.window, player.text)
        for other, text in player.forks:
            assert_shows(other, text)


@settings(max_examples=60, deadline=None)
@given(script=scripts(EVERY), policy=POLICIES)
def test_a_plan_says_what_is_called(script: list[Edit], policy: Policy) -> None:
    with recording_engine() as engine:
        player = Script(engine.window(policy))
        for edit in script:
            player.one(edit)
            player.window.commit()
            engine.backend.calls.clear()
            planned = player.window.plan()
            plan = player.window.commit()
            assert plan == planned
            tokens, ops = plan.tokens(), Counter(op.op for op in plan.ops)
            called: Counter[str] = Counter()
            for verb, _, count in engine.backend.calls:
                called[verb] += count
            assert called["prefill"] == tokens["recomputed"]
            removed = sum(op.tokens for op in plan.ops if op.op == "apply_removal")
            assert called["place"] + called["patch"] >= tokens["rotated"] + tokens["patched"]
            assert called["place"] + called["patch"] <= tokens["rotated"] + tokens["patched"] + removed
            assert called["canonical"] == sum(op.tokens for op in plan.ops if op.op == "form_canonical")
            assert sum(tokens.values()) == plan_length(player.window)
            assert ops["evict"] == 0  # the commit before carried everything out


def plan_length(window: Window) -> int:
    return window.kv.end - window.kv.start


@settings(max_examples=60, deadline=None)
@given(script=scripts(EVERY), policy=POLICIES)
def test_usage_is_the_sum_of_the_plans(script: list[Edit], policy: Policy) -> None:
    names = ("reused", "rotated", "patched", "recomputed")
    with recording_engine() as engine:
        window = engine.window(policy)
        player, total = Script(window), Counter[str]()
        for edit in script:
            if edit[0] in ("fork", "learn", "commit"):
                continue
            player.one(edit)
            engine.backend.calls.clear()
            plan = window.commit()
            total.update(plan.tokens())
            prefilled = sum(count for verb, _, count in engine.backend.calls if verb == "prefill")
            placed = sum(count for verb, _, count in engine.backend.calls if verb in ("place", "patch"))
            assert prefilled == plan.tokens()["recomputed"]
            assert placed >= plan.tokens()["rotated"] + plan.tokens()["patched"]
        assert {name: getattr(window.usage, name) for name in names} == {name: total[name] for name in names}


@settings(max_examples=40, deadline=None)
@given(script=scripts(EVERY), policy=POLICIES)
def test_equal_edits_give_equal_calls(script: list[Edit], policy: Policy) -> None:
    calls = []
    for _ in range(2):
        with recording_engine() as engine:
            Script(engine.window(policy)).play(script)
            calls.append(engine.backend.calls)
    assert calls[0] == calls[1]


@settings(max_examples=40, deadline=None)
@given(script=scripts([name for name in EVERY if name != "commit"]), policy=POLICIES)
def test_committing_in_between_changes_no_token(script: list[Edit], policy: Policy) -> None:
    shown = []
    for often in (True, False):
        with recording_engine() as engine:
            player = Script(engine.window(policy))
            for edit in script:
                player.one(edit)
                if often:
                    player.window.commit()
            player.window.commit()
            shown.append(rows(player.window.kv))
    assert shown[0] == shown[1]


@settings(max_examples=60, deadline=None)
@given(script=scripts(EVERY), policy=POLICIES, budget=st.integers(1, 4000))
@example(  # two canonicals that push each other out
    script=[("append", 4, 0), ("learn", 0, 0), ("evict", 0, 0), ("recall", 0, 0), ("clean", 0, 1)],
    policy=Policy(name="exact", kl_budget=0.0, stash=False),
    budget=1320,
)
def test_a_store_too_small_for_everything_costs_time_and_nothing_else(
    script: list[Edit], policy: Policy, budget: int
) -> None:
    with recording_engine(store=MemoryStore(budget)) as engine:
        player = Script(engine.window(policy))
        player.play(script)
        player.window.commit()
        assert_shows(player.window, player.text)
        assert engine.store.nbytes <= budget


def test_a_window_slides_for_long_within_a_small_buffer() -> None:
    """As an agent's history does: many times the length of the buffer goes through it."""
    with recording_engine(first_rows=64, max_positions=512) as engine:
        window = engine.window("fast", max_tokens=400)
        system = words(20, 1)
        window.append(system, kind="system", pin=True)
        said: list[str] = []
        for turn in range(60):
            said.append(words(50, turn))
            window.slide(320)
            window.append(said[-1])
            window.commit()
            assert window.kv.capacity <= 512
            assert_shows(window, " ".join([system, *said[-(len(window.graph.placements) - 1) :]]))
        assert window.usage.recomputed == 20 + 60 * 50


class Forgetful(MemoryStore):
    """Loses entries at the worst moment. after: how many listings or look-ups still tell the truth."""

    def __init__(self, method: str, after: int, for_good: bool = True) -> None:
        super().__init__()
        self.method, self.after, self.for_good, self.lied = method, after, for_good, 0

    def _forget(self, method: str) -> bool:
        if self.method != method or not self._entries:
            return False
        self.after -= 1
        if self.after >= 0:
            return False
        self.lied += 1
        if self.for_good:
            for key in tuple(self._entries):
                self._remove(key)
        return True

    def get(self, key: Key, rows: KVBlock | None = None) -> Stored | None:
        return None if self._forget("get") else super().get(key, rows)

    def held(self, chunks: Collection[str], tenant: str = "") -> Mapping[Key, Found]:
        found = super().held(chunks, tenant)
        if found:
            self._forget("held")
        return found


def recalled(store: Forgetful) -> tuple[RecordingEngine, Window, str]:
    """A window that wants an evicted message back, with nothing carried out yet."""
    engine = recording_engine(store=store)
    window = engine.window(Policy(name="balanced", kl_budget=0.0))
    window.append(words(30, 1))
    note = window.append(words(20, 2))
    window.commit()
    window.evict(note)
    window.commit()
    window.recall(note)
    return engine, window, f"{words(30, 1)} {words(20, 2)}"


@pytest.mark.parametrize("method", ["get", "held"])
@pytest.mark.parametrize("after", range(4))
def test_what_the_store_loses_meanwhile_is_planned_anew(method: str, after: int) -> None:
    """Another thread's put may push out what a plan counts on, at any moment from planning to reading."""
    store = Forgetful(method, after=10**6)
    _, window, text = recalled(store)
    store.after = after
    plan = window.commit()
    assert_shows(window, text)
    assert {"load", "prefill"} & {op.op for op in plan.ops}
    if store.lied:
        assert plan.tokens()["recomputed"] in (0, 20)


def test_a_store_that_never_gives_what_it_lists_costs_a_prefill() -> None:
    store = Forgetful("get", after=0, for_good=False)
    _, window, text = recalled(store)
    plan = window.commit()
    assert store.lied == 1
    assert plan.tokens()["recomputed"] == 20
    assert_shows(window, text)


def test_all_that_is_missing_is_found_out_at_once() -> None:
    """A store that lists twenty messages and gives none of them: one more plan, not twenty."""
    store = Forgetful("get", after=10**6, for_good=False)
    engine = recording_engine(store=store)
    window = engine.window(Policy(name="balanced", kl_budget=0.0))
    window.append(words(30, 1))
    notes = [window.append(words(20, 2 + i)) for i in range(20)]
    window.commit()
    for note in notes:
        window.evict(note)
    window.commit()
    for note in notes:
        window.recall(note)
    store.after = 0
    assert window.commit().tokens()["recomputed"] == 400
    assert_shows(window, " ".join(words(20 + 10 * (i == 0), i + 1) for i in range(21)))
    assert store.lied == 20


@pytest.mark.parametrize("entry", [kv_block(20), kv_block(3, layers=1)])
@pytest.mark.parametrize("told", [True, False])
def test_kv_of_another_shape_is_never_put_into_a_window(entry: Entry, told: bool) -> None:
    """told: it claims to be computed from what the window wants."""
    engine, window, text = recalled(Forgetful("never", 0))
    (key,) = [key for key in engine.store.keys() if key.kind == "conditioned"]  # noqa: SIM118
    engine.store.put(key, entry, origin=engine.origin(key.chunk) if told else None)
    assert window.commit().tokens()["recomputed"] == 20
    assert_shows(window, text)
    assert engine.shelf.foreign == 1


@pytest.mark.parametrize("field", ["ids", "modality", "fingerprint"])
def test_kv_of_another_content_is_never_put_into_a_window(field: str) -> None:
    """As a store would give it whose hash can be made to collide, or that another model filled."""
    engine, window, text = recalled(Forgetful("never", 0))
    (key,) = [key for key in engine.store.keys() if key.kind == "conditioned"]  # noqa: SIM118
    stored, origin = engine.store.get(key), engine.origin(key.chunk)
    assert stored is not None
    other = {"ids": origin.ids + 1, "modality": b"x", "fingerprint": "f" * 40}[field]
    engine.store.put(key, stored.entry, stored.note, replace(origin, **{field: other}))
    assert window.commit().tokens()["recomputed"] == 20
    assert_shows(window, text)
    assert (engine.shelf.foreign, len(engine.store.keys())) == (1, 0)


def test_kv_under_the_key_of_a_patch_is_never_applied() -> None:
    engine, window, text = recalled(Forgetful("never", 0))
    window.settle()
    (key,) = [key for key in engine.store.keys() if key.kind == "patch"]  # noqa: SIM118
    engine.store.put(key, kv_block(20), origin=engine.origin(key.chunk))
    window.policy = Policy(kl_budget=0.01)  # a patch fits it, a canonical alone does not
    assert window.commit().tokens()["recomputed"] == 20
    assert_shows(window, text)


def test_nothing_to_do_calls_nothing() -> None:
    with recording_engine() as engine:
        window = engine.window()
        window.append(words(10))
        window.commit()
        engine.backend.calls.clear()
        window.commit()
        assert engine.backend.calls == []


def test_neighbouring_chunks_are_one_prefill_and_others_their_own() -> None:
    with recording_engine() as engine:
        window = engine.window(Policy(name="fast"))
        a, b = window.append(words(10, 1)), window.append(words(12, 2))
        window.commit()
        assert engine.backend.calls == [("prefill", 0, 22)]
        engine.backend.calls.clear()
        window.append(words(5, 3), before=b)
        window.append(words(6, 4))
        window.append(words(7, 5))
        window.commit()
        prefills = [call for call in engine.backend.calls if call[0] == "prefill"]
        assert [count for _, _, count in prefills] == [5, 13]
        assert a in [entry.handle for entry in window.content.live()]


def test_an_answer_of_no_model_depends_on_the_whole_window() -> None:
    with recording_engine() as engine:
        window = engine.window()
        window.append("w1 w2 w3")
        assert window.generate("w4", max_new_tokens=3, stop=False) == "w10 w20 w40"
        assert_shows(window, "w1 w2 w3 w4 w10 w20 w40")


def test_other_words_than_numbers_have_ids_too() -> None:
    with recording_engine() as engine:
        window = engine.window()
        window.append("any words at all")
        window.commit()
        assert len(rows(window.kv)) == 4


def test_threads_over_one_recorder_keep_their_windows_apart() -> None:
    failures: list[Any] = []
    with recording_engine() as engine:

        def work(seed: int) -> None:
            try:
                player = Script(engine.window(Policy(name="fast")))
                for turn in range(12):
                    player.one((EDITS[(seed + turn) % 7], seed * 13 + turn, turn * 7))
                    player.window.commit()
                    assert_shows(player.window, player.text)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
