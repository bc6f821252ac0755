"""More named situations: what agents do to their windows all day, and the ops that only idle work makes."""

from __future__ import annotations

from agentkv_orchestrator.policy import Policy

from tests.orchestrator.scenarios import (
    SCENARIOS,
    Edit,
    Opened,
    Scenario,
    opened_by,
    placed,
    scenario,
    without,
)
from tests.strategies import MENDING

__all__ = ["SCENARIOS", "Scenario", "opened_by"]


@scenario
def settle_while_a_tool_runs(window: Opened) -> Edit:
    """A message has left, and its copy becomes a canonical and a patch, in fewer bytes. No row moves."""
    session = window("system", "note", "task")
    session.go(without(session, "note"))
    return session, None, "balanced"


@scenario
def mode_switch_exchanges_the_tool_list(window: Opened) -> Edit:
    """The tools of the other mode were shown before: they are loaded, and the conversation stays."""
    session = window("system:50", "plan_tools:120", "chat:400")
    system, first, chat = session.wanted
    (second,) = placed(session, "act_tools:130")
    session.go([system, second, chat], "fast")
    return session, [system, first, chat], "fast"


@scenario
def compaction_into_a_summary(window: Opened) -> Edit:
    """Ten turns become one short message; the recent turns are kept, computed or moved as the budget says."""
    session = window("system:60", *(f"turn{i}:40" for i in range(10)), "recent1:80", "recent2:80")
    system, *_, one, two = session.wanted
    return session, [system, *placed(session, "summary:50"), one, two], "balanced"


@scenario
def another_question_about_the_same_document(window: Opened) -> Edit:
    """Only the question is computed."""
    session = window("system", "document:600", "question1:24")
    return session, [*session.wanted[:2], *placed(session, "question2:24")], "balanced"


@scenario
def the_same_document_twice(window: Opened) -> Edit:
    """Two placements of one chunk; the first leaves, the second stands behind what it has not lost."""
    session = window("document", "note:20")
    session.go([*session.wanted, session.place_chunk(session.wanted[0].chunk)])
    return session, session.wanted[1:], "balanced"


@scenario
def undo_of_a_compaction(window: Opened) -> Edit:
    """What the window held before is asked for again: all that was stashed is loaded, nothing is computed."""
    session, wanted, policy = compaction_into_a_summary(window)
    before = session.wanted
    session.go(wanted, policy)
    return session, before, "balanced"


@scenario
def everything_is_stored_in_another_order(window: Opened) -> Edit:
    """A hit of 100 % that no prefix cache sees: all three come back, and no forward runs."""
    session = window("a", "b", "c")
    for name in "abc":
        session.hold_canonical(name)
    a, b, c = session.wanted
    session.go([])
    return session, [c, a, b], "fast"


@scenario
def an_antecedent_returns_in_front_of_its_dependents(window: Opened) -> Edit:
    """The cascade: what stands behind was computed with it, went on without it, and has it again."""
    session = window("system:30", "contract", "clause", "note")
    session.go(without(session, "contract"))
    contract = session.seen["contract"]
    system, clause, note = session.wanted
    return session, [system, session.place_chunk(contract), clause, note], "balanced"


@scenario
def recall_behind_a_distractor(window: Opened) -> Edit:
    """A patch is stored for one antecedent fewer: it is taken, and the chunk stays on the books as stale."""
    session = window("system", "note", "task")
    session.go(without(session, "note"))
    session.settle()
    session.forget_copies()
    system, task = session.wanted
    return session, [system, *placed(session, "extra:10", "note"), task], Policy(kl_budget=0.02)


@scenario
def a_screenshot_is_recalled(window: Opened) -> Edit:
    """256 rows over 16 positions come back from the store, turned in positions, without the vision tower."""
    session = window("system", "shot1:256/16", "note")
    session.go(without(session, "shot1"), "fast")
    return session, [*session.wanted, session.place_chunk(session.seen["shot1"])], "fast"


@scenario
def a_screenshot_first(window: Opened) -> Edit:
    """An image in front of the text, and the text is exchanged: the image is a prefix like any other."""
    session = window("shot:256/16", "note", "question:24")
    return session, [session.wanted[0], *placed(session, "note2", "question2:24")], "exact"


@scenario
def repair_guided_by_the_question(window: Opened) -> Edit:
    """A model that computes slowly, a budget that stale survivors exceed, and a question that is computed
    anyway: the rows that it attends most are computed again."""
    session = window("a", "b", "c", "d")
    session.costs = MENDING
    return session, [*without(session, "a", "b"), *placed(session, "question:20")], Policy(kl_budget=0.006)


@scenario
def a_patch_estimated_from_a_few_rows(window: Opened) -> Edit:
    """A canonical and no patch: a quarter of the rows is computed, and the rest of the patch follows."""
    session = window("system", "task")
    session.costs = MENDING
    session.hold_canonical("note")
    return session, [*session.wanted, *placed(session, "note")], Policy(kl_budget=0.02)
