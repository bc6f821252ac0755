"""Plans of typical edits, kept as JSON in tests/golden so that a change of the planner shows in a diff.

AGENTKV_UPDATE_GOLDEN=1 writes them anew; read the diff before you commit it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from agentkv_orchestrator.check import check
from agentkv_orchestrator.diff import Wanted
from agentkv_orchestrator.explain import explain
from agentkv_orchestrator.match import match
from agentkv_orchestrator.plan import Plan
from agentkv_orchestrator.policy import Policy

from tests.orchestrator.fake_machine import Session

GOLDEN = Path(__file__).parent.parent / "golden"
UPDATE = os.environ.get("AGENTKV_UPDATE_GOLDEN") == "1"

Edit = tuple[Session, Sequence[Wanted], str | Policy]
SCENARIOS: list[Callable[[], Edit]] = []


def scenario(make: Callable[[], Edit]) -> Callable[[], Edit]:
    SCENARIOS.append(make)
    return make


def window(*parts: str, capacity: int = 1024, max_rows: int = 4096) -> Session:
    """A window computed in one go, from "name:tokens" (100 where no number is given); an image is
    "name:tokens/positions"."""
    session = Session(capacity, max_rows)
    session.go(placed(session, *parts))
    return session


def placed(session: Session, *parts: str) -> list[Wanted]:
    found = []
    for part in parts:
        name, _, size = part.partition(":")
        length, _, span = (size or "100").partition("/")
        found.append(session.place(name, int(length), int(span) if span else None))
    return found


def without(session: Session, *names: str) -> list[Wanted]:
    return [w for w in session.wanted if w.chunk.id not in names]


def ordered(session: Session, *names: str) -> list[Wanted]:
    by_name = {w.chunk.id: w for w in session.wanted}
    return [by_name[name] for name in names]


@scenario
def slide() -> Edit:
    """The oldest chunk leaves; the others stand where they stood, and the window starts later."""
    session = window("a", "b", "c", "d", "e")
    return session, without(session, "a"), "balanced"


@scenario
def hole() -> Edit:
    """A chunk leaves from the middle; the smaller side moves."""
    session = window("a", "b", "c", "d", "e")
    return session, without(session, "c"), "balanced"


@scenario
def keep_last_two_behind_a_pinned_head() -> Edit:
    """Everything between the system prompt and the last two turns leaves; only the prompt moves."""
    session = window("system:30", "a", "b", "c", "d")
    session.wanted[0] = session.wanted[0].model_copy(update={"pinned": True})
    return session, without(session, "a", "b"), Policy(kl_budget=0.1)


@scenario
def slide_with_a_removal_patch() -> Edit:
    """One survivor has a patch for exactly this change, and the budget is tight enough to use it."""
    session = window("a", "b", "c", "d", "e")
    session.learn_removal("e", ["a", "b", "c", "d"], ["b", "c", "d"])
    return session, without(session, "a"), Policy(kl_budget=0.008)


@scenario
def recall_with_a_stored_patch() -> Edit:
    """An evicted chunk comes back behind the antecedents its patch was formed for."""
    session = window("system", "note", "task")
    session.go(without(session, "note"))
    session.settle()
    session.machine.store.conditioned.clear()
    system, task = session.wanted
    return session, [system, *placed(session, "note"), task], Policy(kl_budget=0.02)


@scenario
def recall_with_stored_kv() -> Edit:
    """An evicted chunk comes back where it stood, from the copy that was stashed; it stays exact."""
    session = window("system", "note", "task")
    session.go(without(session, "note"))
    system, task = session.wanted
    return session, [system, *placed(session, "note"), task], "balanced"


@scenario
def recall_after_the_clock_moved() -> Edit:
    """KV is stored for a context that differs by the clock: priced like a survivor, not computed again."""
    session, ticked, _ = clock(8)
    chat = session.wanted[-1]
    session.go(without(session, "chat"))
    session.go([w for w in ticked if w.chunk.id != "chat"])
    return session, [*session.wanted, chat], "balanced"


@scenario
def recall_with_a_canonical_only() -> Edit:
    """At the tail, behind antecedents nobody has seen it behind; the budget allows the bare canonical."""
    session = window("system", "task")
    session.machine.store.canonical.add("note")
    return session, [*session.wanted, *placed(session, "note")], "balanced"


@scenario
def recall_without_anything_stored() -> Edit:
    """The store has lost it: a chunk like any other that was never seen."""
    session = window("system", "note", "task")
    session.go(without(session, "note"))
    session.machine.store.conditioned.clear()
    return session, [*session.wanted, *placed(session, "note")], "balanced"


@scenario
def reorder_with_an_orbit_patch() -> Edit:
    """Documents swap places; the last one has a patch for any order of the others."""
    session = window("system:20", "a", "b", "c")
    session.learn_orbit("c", ["system", "a", "b"])
    return session, ordered(session, "system", "b", "a", "c"), Policy(kl_budget=0.017)


@scenario
def reorder_without() -> Edit:
    """Documents swap places; their KV moves along, stale inside the budget."""
    session = window("system:20", "a", "b", "c")
    return session, ordered(session, "system", "b", "a", "c"), "balanced"


@scenario
def tool_list_reordered() -> Edit:
    """A client sends its five tool schemas in reverse; the conversation behind them stays in place."""
    session = window("system:50", "tool1:60", "tool2:60", "tool3:60", "tool4:60", "tool5:60", "chat:400")
    names = ["tool5", "tool4", "tool3", "tool2", "tool1"]
    return session, ordered(session, "system", *names, "chat"), "balanced"


def clock(size: int) -> Edit:
    session = window("head:40", "10h59:8", "rules:300", "chat:200")
    head, _, rules, chat = session.wanted
    return session, [head, *placed(session, f"11h00:{size}"), rules, chat], "balanced"


@scenario
def timestamp_of_the_same_length() -> Edit:
    """A clock in the header changes: its few tokens are computed, nothing moves."""
    return clock(8)


@scenario
def timestamp_that_grew() -> Edit:
    """The clock takes two tokens more; there is no row in front to give, so all behind it moves by two."""
    return clock(10)


@scenario
def fork_after_an_append() -> Edit:
    """A branch shares the window and adds its own continuation."""
    session = window("system", "task", "draft")
    session.go([*session.wanted, *placed(session, "critique:50")])
    return session, [*session.wanted[:-1], *placed(session, "praise:50")], "balanced"


@scenario
def clean_view() -> Edit:
    """A chunk is shown as if nothing stood in front; its canonical is formed on the way."""
    session = window("system", "quote", "task")
    system, quote, task = session.wanted
    return session, [system, quote.model_copy(update={"clean": True}), task], "balanced"


@scenario
def clean_view_and_back() -> Edit:
    """The context is asked back for: the stashed KV returns, though leaving it clean would fit the budget."""
    session, wanted, policy = clean_view()
    session.go(wanted, policy)
    return session, [w.model_copy(update={"clean": False}) for w in wanted], "balanced"


@scenario
def evict_and_recall_in_one_edit() -> Edit:
    """A client rebuilds its message list with equal content; matching finds every chunk again."""
    session = window("system", "a", "b")
    live = [(w.uid, w.chunk.id) for w in session.wanted]
    again = placed(session, "system", "a", "b")
    uids = match(live, [w.chunk.id for w in again], next_uid=99)
    wanted = [w.model_copy(update={"uid": uid}) for uid, w in zip(uids, again, strict=True)]
    return session, wanted, "balanced"


@scenario
def exact_append() -> Edit:
    """The prefix is kept, the rest computed: what any engine does."""
    session = window("system", "a")
    return session, [*session.wanted, *placed(session, "b", "c")], "exact"


@scenario
def exact_slide() -> Edit:
    """Nothing stands behind what it was computed behind, so everything is computed."""
    session = window("a", "b", "c")
    return session, without(session, "a"), "exact"


@scenario
def exact_edit_in_the_middle() -> Edit:
    """Kept up to the edit, computed from there on."""
    session = window("system", "a", "b", "c")
    system, a, _, c = session.wanted
    return session, [system, a, *placed(session, "b2"), c], "exact"


@scenario
def fast_takes_what_is_there() -> Edit:
    """Half of the window leaves and one chunk returns bare; over the budget, and the plan says so."""
    session = window("a", "b", "c", "d")
    session.machine.store.canonical.add("note")
    return session, [*without(session, "a", "b"), *placed(session, "note")], "fast"


@scenario
def balanced_computes_where_the_budget_ends() -> Edit:
    """The same edit with a budget: the figures decide who is computed."""
    session, wanted, _ = fast_takes_what_is_there()
    return session, wanted, "balanced"


@scenario
def capacity_grows() -> Edit:
    """The window outgrows its buffer."""
    session = window("a", "b", capacity=256)
    return session, [*session.wanted, *placed(session, "c")], "balanced"


@scenario
def back_to_row_0() -> Edit:
    """A window that has walked to the end of its buffer moves back, all of it."""
    session = window("system:10", "a", "b", "c", capacity=400)
    session.go(without(session, "a"), "fast")
    return session, [*session.wanted, *placed(session, "d")], "fast"


@scenario
def an_old_screenshot_leaves() -> Edit:
    """256 rows and 16 positions less: what moves goes by rows in the buffer and by positions in RoPE."""
    session = window("system", "shot1:256/16", "note", "shot2:256/16", "question")
    return session, without(session, "shot1"), "balanced"


@scenario
def an_image_of_another_shape() -> Edit:
    """64 tokens as 8 x 8 in place of 4 x 16: rows stay where they are, positions behind do not."""
    session = window("system", "wide:64/16", "note:90")
    system, _, note = session.wanted
    return session, [system, *placed(session, "square:64/8"), note], "fast"


@pytest.mark.parametrize("make", SCENARIOS, ids=lambda make: make.__name__)
def test_plan(make: Callable[[], Edit]) -> None:
    session, wanted, policy = make()
    plan = session.plan(wanted, policy)
    check(plan, session.graph, wanted, session.machine.store.residency(), session.max_rows)
    page = {
        "edit": make.__doc__,
        "before": [f"{p.chunk.id} rows {p.row}+{p.chunk.length}" for p in session.graph.placements],
        "wanted": [w.chunk.id + " clean" * w.clean for w in wanted],
        "summary": explain(plan).splitlines()[0],
        "plan": json.loads(plan.to_json()),
    }
    text = json.dumps(page, indent=2, ensure_ascii=False) + "\n"
    file = GOLDEN / f"{make.__name__}.json"
    if UPDATE:
        file.write_text(text)
    assert file.exists(), "run once with AGENTKV_UPDATE_GOLDEN=1"
    assert file.read_text() == text
    assert Plan.from_json(json.dumps(page["plan"])) == plan


def test_no_golden_plan_is_left_over() -> None:
    assert {file.stem for file in GOLDEN.glob("*.json")} == {make.__name__ for make in SCENARIOS}
