"""Plans in words and pictures."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any, get_args

import pytest
from agentkv_orchestrator.errors import PlanError
from agentkv_orchestrator.explain import Format, explain
from agentkv_orchestrator.explain.account import account, errors
from agentkv_orchestrator.plan import Plan
from agentkv_orchestrator.policy import Policy
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.orchestrator.fake_machine import Session
from tests.orchestrator.test_random_edits import play
from tests.strategies import edits, policies


@pytest.fixture
def plan() -> Plan:
    """[head a b c]: a leaves, d comes."""
    session = Session()
    session.go([session.place(name, size) for name, size in (("head", 5), ("a", 20), ("b", 20), ("c", 20))])
    head, _, b, c = session.wanted
    return session.plan([head, b, c, session.place("d", 20)])


def test_text_names_every_op_with_its_rows_and_reason(plan: Plan) -> None:
    text = explain(plan)
    head, *lines = text.splitlines()
    assert head.startswith("balanced: 40 reused, 5 rotated, 20 recomputed;")
    assert head.endswith("window starts at row 20")
    for op in plan.ops:
        line = next(x for x in lines if x.startswith(f"  {op.op} ") and f" {op.chunk}#{op.uid} " in x)
        assert line.endswith(op.reason)
        for other in op.alternatives:
            assert any(other.name in x and other.why_not in x for x in lines)
    assert "rows 0→20+5" in text
    told = [x for x in lines if x.startswith("  the edit:") or "% of " in x.partition(":")[0]]
    assert len(lines) == len(told) + len(plan.ops) + sum(len(op.alternatives) for op in plan.ops)


def test_json_is_the_plan(plan: Plan) -> None:
    assert Plan.from_json(explain(plan, "json")) == plan
    assert json.loads(explain(plan, "json"))["ops"][0]["op"] == "stash"


def test_mermaid_draws_the_new_window_in_order(plan: Plan) -> None:
    lines = explain(plan, "mermaid").splitlines()
    assert lines[0] == "flowchart LR"
    arrows = [line.strip() for line in lines if "-->" in line]
    assert arrows == ["u1 --> u3", "u3 --> u4", "u4 --> u5"]
    styles = {line.strip().partition("[")[0]: line.rpartition(":::")[2] for line in lines if ":::" in line}
    assert styles == {"u1": "rotated", "u3": "reused", "u4": "reused", "u5": "recomputed", "u2(": "gone"}
    defined = {line.split()[1] for line in lines if "classDef" in line}
    assert set(styles.values()) <= defined


def test_a_fast_plan_says_when_it_is_over_the_budget(plan: Plan) -> None:
    session = Session()
    session.machine.store.canonical |= {"x", "y"}
    over = session.plan([session.place("x", 5), session.place("y", 5)], Policy(name="fast", kl_budget=0.05))
    assert over.over_budget
    assert "OVER BUDGET" in explain(over)
    assert ":::patched" in explain(over, "mermaid")
    assert "OVER BUDGET" not in explain(plan)


def test_idle_work_and_nothing_at_all_can_be_explained() -> None:
    session = Session()
    session.go([session.place(name, 10) for name in "ab"])
    session.go(session.wanted[:1])
    text = explain(session.settle())
    assert "form_canonical  b " in text
    assert "form_patch      b " in text
    assert "no tokens" in explain(Session().plan([]))


def test_text_begins_with_what_was_slow_and_why(plan: Plan) -> None:
    _, *lines = plan.explain().splitlines()
    assert lines[0] == "  the edit: left: a#2; came: d#5"
    assert lines[1].startswith("  100% of 31.25 ms: prefill of d#5 (20 tokens): nothing is held for it")
    off = [x for x in lines if "of KL" in x]
    assert len(off) == 1  # what is asked inherits nothing
    assert off[0].startswith(
        f"  100% of KL {plan.predicted_kl:.3g}: keep of b#3, c#4 (40 tokens): in front: 1 chunk"
    )


def test_text_says_what_is_inherited() -> None:
    """x is computed behind b, which is off, and y is asked behind both."""
    session = Session()
    session.go([session.place(name, 20) for name in "sab"])
    s, _, b = session.wanted
    text = session.plan([s, b, session.place("x", 20), session.place("y", 20)]).explain()
    line = next(x for x in text.splitlines() if "inherited" in x)
    assert "prefill of x#4 (20 tokens): inherited from what is off in front" in line


def recomputed(policy: Policy) -> Plan:
    """[s a b c] with x inserted behind s, which makes the rest stale."""
    session = Session()
    session.go([session.place(name, 20) for name in "sabc"])
    s, *rest = session.wanted
    return session.plan([s, session.place("x", 40), *rest], policy)


def test_a_chunk_that_was_computed_again_says_what_reuse_would_have_cost() -> None:
    plan = recomputed(Policy(kl_budget=0.001))
    (told,) = [x for x in plan.explain().splitlines() if "prefill of a#2, b#3, c#4" in x]
    assert "closest was rotate (in front: 1 chunk came)" in told
    kl = sum(min(o.kl for o in op.alternatives) for op in plan.ops if op.op == "prefill" and op.alternatives)
    assert kl > 0.001
    assert told.endswith(f"the window's KL would be {kl:.3g}, {kl - 0.001:.2g} over the budget")
    exact = recomputed(Policy(name="exact")).explain()
    assert "exact computes all behind the prefix that stands; closest was rotate" in exact


def test_shares_add_up_and_the_costliest_comes_first() -> None:
    for policy in (Policy(), Policy(kl_budget=0), Policy(name="fast"), Policy(name="exact")):
        plan = recomputed(policy)
        items = account(plan, {})
        assert sum(item.ms for item in items) == pytest.approx(plan.predicted_ms)
        assert sum(item.share for item in items) == pytest.approx(1)
        assert [item.ms for item in items] == sorted((item.ms for item in items), reverse=True)
        assert sum(item.share for item in errors(plan, {})) == pytest.approx(float(plan.predicted_kl > 0))


def test_many_chunks_that_stand_are_one_line() -> None:
    session = Session()
    session.go([session.place(f"c{i}", 5) for i in range(30)])
    text = session.plan([*session.wanted, session.place("d", 5)]).explain(names={1: "system", 30: "note"})
    assert "keep            30 chunks, system to note, rows 0+150: same antecedents in front" in text
    assert len(text.splitlines()) == 5


def test_what_was_measured_stands_beside_what_was_predicted(plan: Plan) -> None:
    steps = {"prefill": 30.0, "edit": 1.5, "load": 0.0}
    for fmt in ("text", "html"):
        assert "measured 31.5 ms: prefill 30, edit 1.5" in explain(plan, fmt, measured=steps)  # type: ignore[arg-type]
    assert "measured" not in explain(plan)


class Page(HTMLParser):
    """Tags, links and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.links, self.words = list[str](), list[str](), list[str]()
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [name for name, _ in attrs if name in ("src", "href") or name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


HOSTILE = '<script>alert("x")</script><img src=x onerror=alert(1)>`#quot;'


@pytest.mark.parametrize("fmt", ["html", "mermaid"])
def test_a_name_cannot_run(plan: Plan, fmt: Any) -> None:
    names = {op.uid: HOSTILE for op in plan.ops if op.uid is not None}
    page = plan.explain(fmt, names)
    assert "<script" not in page
    assert "<img" not in page
    if fmt == "html":
        found = Page(page)
        assert not {"script", "img", "link", "iframe"} & set(found.tags)
        assert not found.links
        assert HOSTILE in found.words  # shown as it is
    else:
        labels = [line.split('["')[1].rpartition('"]')[0] for line in page.splitlines() if '["' in line]
        assert not any('"' in text or "`" in text for text in labels)


def test_the_page_says_all_that_the_text_says(plan: Plan) -> None:
    found = " ".join(Page(plan.explain("html")).words)
    for op in plan.ops:
        assert op.reason in found
        assert all(other.why_not in found and other.reason in found for other in op.alternatives)
    for line in explain(plan).splitlines()[2:3]:
        assert line.rpartition(": ")[2] in found


@settings(max_examples=60, deadline=None)
@given(edits, policies, st.text(max_size=30))
def test_every_plan_can_be_explained(script: list, policy: Policy, name: str) -> None:
    session = Session(max_rows=300)
    for plan in play(session, script, policy):
        names = {op.uid: name for op in plan.ops if op.uid is not None}
        for fmt in get_args(Format):
            assert plan.explain(fmt, names)
        assert (
            name in Page(plan.explain("html", names)).words
            or not plan.ops
            or name != name.strip()
            or not name
        )


def test_an_unknown_format_is_refused(plan: Plan) -> None:
    with pytest.raises(PlanError, match="one of text, json, mermaid, html"):
        explain(plan, "svg")  # type: ignore[arg-type]
