"""What the recovery figures are made of: arms that say the truth, prompts that shift, traces to read back."""

from __future__ import annotations

import io
import zlib
from typing import Any

import pytest
from agentkv_orchestrator.trace import Header, Trace, dump, parse

from bench.eval import registry
from bench.ops import registry as lookups
from bench.traces import bfcl
from bench.traces.__main__ import turns
from bench.traces.conversations import Conversation, Message, load, save
from bench.traces.generated import retrieval, under_headers

TOOLS = tuple(f"{{tool {i}: " + " ".join(f"field{i}.{j}" for j in range(90)) + "}" for i in range(4))
TALK = Conversation(
    "talk",
    "Use the tools.",
    TOOLS,
    (
        Message("user", "find " + " ".join(f"word{i}" for i in range(50))),
        Message("assistant", "find(1)"),
        Message("tool", "found " + " ".join(f"line{i}" for i in range(50))),
        Message("assistant", "Done."),
    ),
)


def tokenizer(text: str, **_: Any) -> dict[str, list[int]]:
    """A word a token."""
    return {"input_ids": [zlib.crc32(word.encode()) % 40_000 for word in text.split()]}


def test_every_arm_says_what_it_met() -> None:
    registry.check()


def test_headers_are_of_many_lengths_and_no_prompt_begins_as_another() -> None:
    prompts = list(under_headers([TALK] * 6))
    assert len(prompts) == 12
    assert len({len(p.segments[0]) for p in prompts}) > 4
    assert len({p.segments[0] for p in prompts}) == 12
    assert prompts[1].segments[2:6] == tuple(f"\n{tool}" for tool in TOOLS)
    assert prompts[0].segments[-1] == f"\n<user>\n{TALK.messages[0].text}"
    assert prompts[0].segments[0] == next(under_headers([TALK])).segments[0]  # by a seed


def test_what_is_measured_is_the_share_behind_the_prefix() -> None:
    found = registry.measure(under_headers([TALK] * 6), tokenizer)
    assert (found["prompts"], found["sessions"]) == (12, 1)
    arms = {name: arm["share"] for name, arm in found["arms"].items()}
    best = arms["registry: chunks, anchors and boundaries (S1, S2)"]
    assert arms["exact prefix"] < 0.05
    assert arms["random cuts"] < 0.1 < 0.7 < best < 1
    assert arms["content-defined chunks"] <= arms["registry: chunks and anchors (S1)"] < 1


def test_documents_come_back_in_another_order() -> None:
    prompts = list(retrieval([" ".join(f"d{i}.{j}" for j in range(60)) for i in range(9)], 2, 5))
    assert {p.session for p in prompts} == {"agent0", "agent1"}
    assert len({p.segments[1:4] for p in prompts}) > 5


def test_calls_are_read_and_never_run_as_code() -> None:
    class Api:
        def add(self, a: int, b: int = 0) -> dict[str, int]:
            return {"sum": a + b}

        def fail(self) -> None:
            raise RuntimeError("no such file")

    assert bfcl._called([Api()], "add(1, b=2)") == '{"sum": 3}'
    assert bfcl._called([Api()], "fail()") == '{"error": "no such file"}'
    for text in ("__import__('os').getcwd()", "add(add(1))", "1 + 1"):
        with pytest.raises(ValueError, match=r"plain call|malformed"):
            bfcl._called([Api()], text)


def test_conversations_and_traces_are_read_back(tmp_path: Any) -> None:
    save([TALK], tmp_path / "talk.jsonl")
    assert load(tmp_path / "talk.jsonl") == [TALK]
    trace = Trace(header=Header(name="talk"), turns=tuple(turns(under_headers([TALK]), tokenizer)))
    text = io.StringIO()
    dump(trace, text)
    assert parse(text.getvalue().splitlines()).turns == trace.turns
    kinds = [message.kind for message in trace.turns[1].messages]
    assert kinds == ["system", "system", *["document"] * 4, "user", "assistant", "tool"]


def test_a_registry_is_checked_before_it_is_timed() -> None:
    known, sample, worst = lookups.filled(1200)
    assert lookups.check(known, sample)
    assert worst > 0
    for _, chunk in sample:
        known.drop(chunk)
    assert not lookups.check(known, sample)
