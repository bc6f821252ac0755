"""Named situations of agents' windows: each an edit of a session, to be planned, and carried out for real.

A scenario is given what opens its windows: the same story runs on integers, on token ids and on a model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from agentkv_orchestrator.diff import Wanted
from agentkv_orchestrator.match import match
from agentkv_orchestrator.policy import Policy

from tests.orchestrator.fake_machine import Session

Edit = tuple[Session, Sequence[Wanted] | None, str | Policy]
"""A session, what is wanted of it next (None: idle work on the store), and under which policy."""


class Opened(Protocol):
    """Opens a window computed in one go, from "name:tokens" (100 where no number is given); an image is
    "name:tokens/positions"."""

    def __call__(self, *parts: str, capacity: int = 1024, max_rows: int = 4096) -> Session: ...


Scenario = Callable[[Opened], Edit]
SCENARIOS: list[Scenario] = []


def scenario(make: Scenario) -> Scenario:
    SCENARIOS.append(make)
    return make


def opened_by(session: Callable[[int, int], Session]) -> Opened:
    """Windows of sessions that this makes, from capacity and max_rows."""

    def window(*parts: str, capacity: int = 1024, max_rows: int = 4096) -> Session:
        made = session(capacity, max_rows)
        made.go(placed(made, *parts))
        return made

    return window


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
def slide(window: Opened) -> Edit:
    """The oldest chunk leaves; the others stand where they stood, and the window starts later."""
    session = window("a", "b", "c", "d", "e")
    return session, without(session, "a"), "balanced"


@scenario
def hole(window: Opened) -> Edit:
    """A chunk leaves from the middle; the smaller side moves."""
    session = window("a", "b", "c", "d", "e")
    return session, without(session, "c"), "balanced"


@scenario
def keep_last_two_behind_a_pinned_head(window: Opened) -> Edit:
    """Everything between the system prompt and the last two turns leaves; only the prompt moves."""
    session = window("system:30", "a", "b", "c", "d")
    session.wanted[0] = session.wanted[0].model_copy(update={"pinned": True})
    return session, without(session, "a", "b"), Policy(kl_budget=0.1)


@scenario
def slide_with_a_removal_patch(window: Opened) -> Edit:
    """One survivor has a patch for exactly this change, and the budget is tight enough to use it."""
    session = window("a", "b", "c", "d", "e")
    session.learn_removal("e", ["a", "b", "c", "d"], ["b", "c", "d"])
    return session, without(session, "a"), Policy(kl_budget=0.008)


@scenario
def recall_with_a_stored_patch(window: Opened) -> Edit:
    """An evicted chunk comes back behind the antecedents its patch was formed for."""
    session = window("system", "note", "task")
    session.go(without(session, "note"))
    session.settle()
    session.forget_copies()
    system, task = session.wanted
    return session, [system, *placed(session, "note"), task], Policy(kl_budget=0.02)


@scenario
def recall_with_stored_kv(window: Opened) -> Edit:
    """An evicted chunk comes back where it stood, from the copy that was stashed; it stays exact."""
    session = window("system", "note", "task")
    session.go(without(session, "note"))
    system, task = session.wanted
    return session, [system, *placed(session, "note"), task], "balanced"


@scenario
def recall_after_the_clock_moved(window: Opened) -> Edit:
    """KV is stored for a context that differs by the clock: priced like a survivor, not computed again."""
    session, ticked, _ = clock(window, 8)
    chat = session.wanted[-1]
    session.go(without(session, "chat"))
    session.go([w for w in ticked if w.chunk.id != "chat"])
    return session, [*session.wanted, chat], "balanced"


@scenario
def recall_with_a_canonical_only(window: Opened) -> Edit:
    """At the tail, behind antecedents nobody has seen it behind; the budget allows the bare canonical."""
    session = window("system", "task")
    session.hold_canonical("note")
    return session, [*session.wanted, *placed(session, "note")], "balanced"


@scenario
def recall_without_anything_stored(window: Opened) -> Edit:
    """The store has lost it: a chunk like any other that was never seen."""
    session = window("system", "note", "task")
    session.go(without(session, "note"))
    session.forget_copies()
    return session, [*session.wanted, *placed(session, "note")], "balanced"


@scenario
def reorder_with_an_orbit_patch(window: Opened) -> Edit:
    """Documents swap places; the last one has a patch for any order of the others."""
    session = window("system:20", "a", "b", "c")
    session.learn_orbit("c", ["system", "a", "b"])
    return session, ordered(session, "system", "b", "a", "c"), Policy(kl_budget=0.017)


@scenario
def reorder_without(window: Opened) -> Edit:
    """Documents swap places; their KV moves along, stale inside the budget."""
    session = window("system:20", "a", "b", "c")
    return session, ordered(session, "system", "b", "a", "c"), "balanced"


@scenario
def tool_list_reordered(window: Opened) -> Edit:
    """A client sends its five tool schemas in reverse; the conversation behind them stays in place."""
    session = window("system:50", "tool1:60", "tool2:60", "tool3:60", "tool4:60", "tool5:60", "chat:400")
    names = ["tool5", "tool4", "tool3", "tool2", "tool1"]
    return session, ordered(session, "system", *names, "chat"), "balanced"


def clock(window: Opened, size: int) -> Edit:
    session = window("head:40", "10h59:8", "rules:300", "chat:200")
    head, _, rules, chat = session.wanted
    return session, [head, *placed(session, f"11h00:{size}"), rules, chat], "balanced"


@scenario
def timestamp_of_the_same_length(window: Opened) -> Edit:
    """A clock in the header changes: its few tokens are computed, nothing moves."""
    return clock(window, 8)


@scenario
def timestamp_that_grew(window: Opened) -> Edit:
    """The clock takes two tokens more; there is no row in front to give, so all behind it moves by two."""
    return clock(window, 10)


@scenario
def fork_after_an_append(window: Opened) -> Edit:
    """A branch shares the window and adds its own continuation."""
    session = window("system", "task", "draft")
    session.go([*session.wanted, *placed(session, "critique:50")])
    return session, [*session.wanted[:-1], *placed(session, "praise:50")], "balanced"


@scenario
def clean_view(window: Opened) -> Edit:
    """A chunk is shown as if nothing stood in front; its canonical is formed on the way."""
    session = window("system", "quote", "task")
    system, quote, task = session.wanted
    return session, [system, quote.model_copy(update={"clean": True}), task], "balanced"


@scenario
def clean_view_and_back(window: Opened) -> Edit:
    """The context is asked back for: the stashed KV returns, though leaving it clean would fit the budget."""
    session, wanted, policy = clean_view(window)
    session.go(wanted, policy)
    return session, [w.model_copy(update={"clean": False}) for w in wanted], "balanced"


@scenario
def evict_and_recall_in_one_edit(window: Opened) -> Edit:
    """A client rebuilds its message list with equal content; matching finds every chunk again."""
    session = window("system", "a", "b")
    live = [(w.uid, w.chunk.id) for w in session.wanted]
    again = placed(session, "system", "a", "b")
    uids = match(live, [w.chunk.id for w in again], next_uid=99)
    wanted = [w.model_copy(update={"uid": uid}) for uid, w in zip(uids, again, strict=True)]
    return session, wanted, "balanced"


@scenario
def exact_append(window: Opened) -> Edit:
    """The prefix is kept, the rest computed: what any engine does."""
    session = window("system", "a")
    return session, [*session.wanted, *placed(session, "b", "c")], "exact"


@scenario
def exact_slide(window: Opened) -> Edit:
    """Nothing stands behind what it was computed behind, so everything is computed."""
    session = window("a", "b", "c")
    return session, without(session, "a"), "exact"


@scenario
def exact_edit_in_the_middle(window: Opened) -> Edit:
    """Kept up to the edit, computed from there on."""
    session = window("system", "a", "b", "c")
    system, a, _, c = session.wanted
    return session, [system, a, *placed(session, "b2"), c], "exact"


@scenario
def fast_takes_what_is_there(window: Opened) -> Edit:
    """Half of the window leaves and one chunk returns bare; over the budget, and the plan says so."""
    session = window("a", "b", "c", "d")
    session.hold_canonical("note")
    return session, [*without(session, "a", "b"), *placed(session, "note")], "fast"


@scenario
def balanced_computes_where_the_budget_ends(window: Opened) -> Edit:
    """The same edit with a budget: the figures decide who is computed."""
    session, wanted, _ = fast_takes_what_is_there(window)
    return session, wanted, Policy(kl_budget=0.05)


@scenario
def capacity_grows(window: Opened) -> Edit:
    """The window outgrows its buffer."""
    session = window("a", "b", capacity=256)
    return session, [*session.wanted, *placed(session, "c")], "balanced"


@scenario
def back_to_row_0(window: Opened) -> Edit:
    """A window that has walked to the end of its buffer moves back, all of it."""
    session = window("system:10", "a", "b", "c", capacity=400)
    session.go(without(session, "a"), "fast")
    return session, [*session.wanted, *placed(session, "d")], "fast"


@scenario
def an_old_screenshot_leaves(window: Opened) -> Edit:
    """256 rows and 16 positions less: what moves goes by rows in the buffer and by positions in RoPE."""
    session = window("system", "shot1:256/16", "note", "shot2:256/16", "question")
    return session, without(session, "shot1"), "balanced"


@scenario
def an_image_of_another_shape(window: Opened) -> Edit:
    """64 tokens as 8 x 8 in place of 4 x 16: rows stay where they are, positions behind do not."""
    session = window("system", "wide:64/16", "note:90")
    system, _, note = session.wanted
    return session, [system, *placed(session, "square:64/8"), note], "fast"
