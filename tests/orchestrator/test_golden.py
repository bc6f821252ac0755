"""Plans of named situations, kept as JSON in tests/golden so that a change of the planner shows in a diff.

AGENTKV_UPDATE_GOLDEN=1 writes them anew; read the diff before you commit it.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from agentkv_orchestrator.check import check
from agentkv_orchestrator.diff import Wanted
from agentkv_orchestrator.plan import NAMES, Plan
from agentkv_orchestrator.planner import after

from tests.orchestrator.fake_machine import Session
from tests.orchestrator.loops import SCENARIOS, Scenario, opened_by

GOLDEN = Path(__file__).parent.parent / "golden"
UPDATE = os.environ.get("AGENTKV_UPDATE_GOLDEN") == "1"


def planned(make: Scenario) -> tuple[Session, Plan, dict[str, object]]:
    """The session in front of the edit, its plan, and the page that is kept of both."""
    session, wanted, policy = make(opened_by(Session))
    plan = session.settling() if wanted is None else session.plan(wanted, policy)
    page = {
        "edit": make.__doc__,
        "before": [f"{p.chunk.id} rows {p.row}+{p.chunk.length}" for p in session.graph.placements],
        "wanted": None if wanted is None else [w.chunk.id + " clean" * w.clean for w in wanted],
        "explained": plan.explain(names=names(session, wanted or ())).splitlines(),
        "plan": json.loads(plan.to_json()),
    }
    if wanted is not None:
        residency = session.machine.store.residency()
        check(plan, session.graph, wanted, residency, session.max_rows)
        left = after(session.graph, plan, wanted, residency)
        called = names(session, wanted)
        page["stale afterwards"] = [called[uid] for uid in left.stale()]
    return session, plan, page


def names(session: Session, wanted: Sequence[Wanted]) -> dict[int, str]:
    """Chunk ids, which are names here; with the uid where one stands twice."""
    chunks = {p.uid: p.chunk.id for p in session.graph.placements} | {w.uid: w.chunk.id for w in wanted}
    count = Counter(chunks.values())
    return {uid: name if count[name] == 1 else f"{name}#{uid}" for uid, name in chunks.items()}


@pytest.mark.parametrize("make", SCENARIOS, ids=lambda make: make.__name__)
def test_plan(make: Scenario) -> None:
    _, plan, page = planned(make)
    text = json.dumps(page, indent=2, ensure_ascii=False) + "\n"
    file = GOLDEN / f"{make.__name__}.json"
    if UPDATE:
        file.write_text(text)
    assert file.exists(), "run once with AGENTKV_UPDATE_GOLDEN=1"
    assert file.read_text() == text
    assert Plan.from_json(json.dumps(page["plan"])) == plan


def test_no_golden_plan_is_left_over() -> None:
    assert {file.stem for file in GOLDEN.glob("*.json")} == {make.__name__ for make in SCENARIOS}


def test_every_op_is_in_some_plan() -> None:
    """A new op needs a situation in which it is the right one."""
    assert len(SCENARIOS) >= 30
    assert {op.op for make in SCENARIOS for op in planned(make)[1].ops} == set(NAMES.values())
