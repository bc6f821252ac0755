"""Simulation: what is counted is what the planner plans, and nobody beats the bound."""

from __future__ import annotations

import pytest
from agentkv_orchestrator.cost import CostTable
from agentkv_orchestrator.errors import PlanError, PolicyError
from agentkv_orchestrator.eviction import LRU
from agentkv_orchestrator.placement import arranged
from agentkv_orchestrator.policy import Policy
from agentkv_orchestrator.simulate import ARMS, Options, Report, simulate
from agentkv_orchestrator.simulation import session as session_module
from agentkv_orchestrator.simulation.account import Account
from agentkv_orchestrator.simulation.future import Future, bound
from agentkv_orchestrator.simulation.rivals import computed, deletions
from agentkv_orchestrator.simulation.session import Session
from agentkv_orchestrator.simulation.shape import Shape
from agentkv_orchestrator.simulation.shelf import Key, Shelf
from agentkv_orchestrator.trace import Header, Message, Trace, Turn
from agentkv_orchestrator.traces import GENERATORS, generate
from hypothesis import given
from hypothesis import strategies as st

COSTS = CostTable.shipped()
PREFILL = COSTS.of("prefill")


def trace(*turns: str, answers: bool = False) -> Trace:
    """Turns as words: each a message of 100 tokens; "w:" in front names the window."""
    played = []
    for number, said in enumerate(turns):
        window, _, listed = said.rpartition(":")
        messages = tuple(Message(id=word, tokens=100) for word in listed.split())
        answer = Message(id=f"answer {number}", tokens=50) if answers else None
        played.append(Turn(messages=messages, answer=answer, window=window))
    return Trace(header=Header(name="made"), turns=tuple(played))


def run(made: Trace, *arms: str, **options: object) -> Report:
    return simulate(made, Options(**options), arms or tuple(ARMS))  # type: ignore[arg-type]


def arm(made: Trace, name: str, **options: object):  # type: ignore[no-untyped-def]
    return run(made, name, **options).arms[0]


@pytest.mark.parametrize("name", GENERATORS)
def test_every_arm_accounts_for_every_token_and_none_beats_the_bound(name: str) -> None:
    made = generate(name, 16, seed=2)
    report = run(made, store_bytes=64 << 20)
    shown = sum(turn.tokens for turn in made.turns)
    assert [a.arm for a in report.arms] == list(ARMS)
    for a in report.arms:
        assert (
            a.reused_tokens + a.rotated_tokens + a.brought_tokens + a.recomputed_tokens
            == shown
            == report.tokens
        )
        assert 0 <= a.hit_rate <= 1
        assert a.store_peak_bytes <= report.store_bytes
        assert a.ms >= report.bound_ms * (1 - 1e-6) or a.arm == "prefix cache", a.arm
        assert a.regret is not None
    by = {a.arm: a for a in report.arms}
    assert by["agentkv balanced"].kl_max <= report.kl_budget + 1e-6
    assert by["agentkv exact"].kl_max == by["re-prefill"].kl_max == by["prefix cache"].kl_max == 0
    assert by["re-prefill"].hit_rate == 0
    assert by["clairvoyant"].regret == 0
    assert Report.model_validate_json(report.model_dump_json()) == report


def test_equal_runs_give_equal_reports() -> None:
    a, b = (
        run(generate("recall", 30, 1)).model_dump(exclude={"arms": {"__all__": {"seconds"}}}) for _ in "ab"
    )
    assert a == b


def test_appending_costs_what_is_new() -> None:
    found = arm(trace("s a", "s a b"), "agentkv balanced")
    wanted = PREFILL.base * 2 + sum(PREFILL.more(100, rows) for rows in (0, 100, 200))
    assert found.ms == pytest.approx(wanted, abs=1e-3)
    assert (found.reused_tokens, found.recomputed_tokens, found.kl_max) == (200, 300, 0)


def test_re_prefill_is_one_forward_a_turn() -> None:
    made = trace("s a", "s a b")
    wanted = sum(computed(COSTS, turn.messages) for turn in made.turns)
    assert arm(made, "re-prefill").ms == pytest.approx(wanted)
    one = PREFILL.base + PREFILL.more(200)
    assert computed(COSTS, made.turns[0].messages) == pytest.approx(one)


def test_an_answer_is_free_and_stands() -> None:
    made = trace("s a", "s a", answers=True)
    second = made.turns[1].model_copy(update={"messages": (*made.turns[0].messages, made.turns[0].answer)})
    made = made.model_copy(update={"turns": (made.turns[0], second)})
    for name in ("agentkv balanced", "agentkv exact", "prefix cache", "llama.cpp"):
        found = arm(made, name)
        assert (found.recomputed_tokens, found.reused_tokens) == (200, 250), name


def test_prefixes_are_shared_across_windows_and_within_a_budget() -> None:
    made = trace("one:s a b", "two:s a c", "one:x", "two:x", "three:s a b")
    found = arm(made, "prefix cache")
    assert found.reused_tokens == 200 + 100 + 300  # s a; x in the other window; all of it again
    none = arm(made, "prefix cache", store_bytes=Shape.shipped().kv(100) - 1)
    assert none.reused_tokens == 200 + 100
    assert none.store_evictions > 0


def test_llama_cpp_survives_deletions_only() -> None:
    live = [(1, "s"), (2, "a"), (3, "b"), (4, "c")]
    assert deletions(live, ["s", "b", "c", "d"], 9) == [1, 3, 4, 9]
    assert deletions(live, ["s", "c", "b"], 9) == [1, 4, 9]
    assert deletions(live, ["s", "new", "a", "b"], 9) == [1, 9, 10, 11]
    assert deletions([], ["s"], 9) == [9]


def test_a_hole_is_moved_over_by_llama_cpp_and_by_agentkv() -> None:
    made = trace("s a b c d e f g", "s b c d e f g")
    assert arm(made, "llama.cpp").recomputed_tokens == 800
    assert arm(made, "agentkv fast").recomputed_tokens == 800
    assert 800 <= arm(made, "agentkv balanced").recomputed_tokens < 800 + 600  # what the budget asks for
    assert arm(made, "prefix cache").recomputed_tokens == 800 + 600


def test_what_left_comes_back_from_the_store() -> None:
    made = trace("s a b", "s a", "s a b")
    assert arm(made, "agentkv balanced").recomputed_tokens == 300
    assert arm(made, "agentkv balanced", store_bytes=1).recomputed_tokens == 400
    assert arm(made, "agentkv balanced").idle_ms > 0
    assert arm(made, "agentkv balanced", settle=False).idle_ms == 0


def test_windows_share_a_store() -> None:
    """Of two agents, the second finds what the first has put there in the same context."""
    made = trace("one:s a b", "one:s a", "two:s a b")
    assert arm(made, "agentkv balanced").brought_tokens == 100


def test_the_future_is_told_by_returns() -> None:
    future = Future(trace("s a b", "s b", "s a b", "s", "s a"))
    assert future.next_return("a") == 2
    assert future.next_return("b") == float("inf")
    assert not future.returns("s")
    future.now = 2
    assert future.next_return("a") == 4
    assert future.returns("a")


def test_the_bound_is_new_content_and_loads() -> None:
    made = trace("s a", "s", "s a")
    wanted = PREFILL.base + PREFILL.more(100) + PREFILL.more(100, 100) + COSTS.time("load", 100)
    assert bound(made, COSTS) == pytest.approx(wanted)


def test_foresight_is_worth_something_in_a_small_store() -> None:
    """Chunks that never come back push the others out of an LRU store, and not out of this one."""
    turns = ["s a b"]
    for i in range(8):
        turns += [f"s x{i} y{i}", "s a b"]
    made, store = trace(*turns), 2 * Shape.shipped().kv(100)
    lru = arm(made, "agentkv balanced", store_bytes=store, evictor="lru", settle=False)
    assert arm(made, "clairvoyant", store_bytes=store, settle=False).ms < lru.ms


@given(
    st.lists(
        st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=6, unique=True), min_size=1, max_size=8
    )
)
def test_any_trace_can_be_played(turns: list[list[str]]) -> None:
    made = trace(*(" ".join(turn) for turn in turns))
    report = run(made)
    planned = [a for a in report.arms if a.arm != "prefix cache"]  # which shares pages and loads nothing
    assert all(a.ms >= report.bound_ms * (1 - 1e-6) for a in planned)


def test_unknown_names_and_tables_are_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(PolicyError, match="one of re-prefill"):
        run(trace("a"), "magic")
    with pytest.raises(PolicyError, match="one of lru"):
        run(trace("a"), evictor="magic")
    (tmp_path / "shape.json").write_text('{"model": "x"}')
    with pytest.raises(PlanError, match="layers"):
        Shape.load(tmp_path / "shape.json")


def test_a_shape_counts_bytes() -> None:
    shape = Shape(model="x", layers=2, slots=(8, 8), itemsize=4, patch_rank=4, patch_itemsize=2)
    assert shape.kv(10) == 10 * 2 * 16 * 4
    assert shape.patch(10) == 2 * 2 * 4 * (10 + 8) * 2
    assert shape.patch(3) == 2 * 2 * 3 * (3 + 8) * 2


@pytest.mark.parametrize("policy", ["exact", "balanced", "fast"])
@pytest.mark.parametrize("name", GENERATORS)
def test_the_short_cut_for_growing_windows_changes_nothing(name: str, policy: str) -> None:
    """Turn by turn the same window, store and account as with a plan for every turn."""
    made, shape = generate(name, 24, seed=4), Shape.shipped()
    shelves = [Shelf(1 << 40, LRU[Key](), COSTS, shape) for _ in range(2)]
    accounts = [Account(), Account()]
    sessions = [
        Session(shelf, COSTS, Policy(name=policy), 200_000, account, grow=grow)  # type: ignore[arg-type]
        for shelf, account, grow in zip(shelves, accounts, (True, False), strict=True)
    ]
    for turn in made.turns:
        for session in sessions:
            session.step(turn)
        assert sessions[0].graph == sessions[1].graph
        assert shelves[0].nbytes == shelves[1].nbytes
    assert accounts[0].ms == pytest.approx(accounts[1].ms, abs=1e-3)
    assert (accounts[0].kl, accounts[0].tokens) == (accounts[1].kl, accounts[1].tokens)


def test_a_growing_window_makes_no_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the turns that start it anew: that is what makes a million events a matter of seconds."""
    made, plans = generate("compaction", 150, seed=1), []
    monkeypatch.setattr(session_module, "arranged", lambda *given: plans.append(1) or arranged(*given))
    arm(made, "agentkv balanced")
    summaries = {m.id for turn in made.turns for m in turn.messages if m.kind == "summary"}
    assert len(plans) == 1 + len(summaries)
