"""The trace format: what is written is read again, and what is wrong is told with its line."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from pathlib import Path

import pytest
from agentkv_orchestrator.errors import TraceError
from agentkv_orchestrator.trace import Trace, dump, load, parse, save
from agentkv_orchestrator.traces import GENERATORS, generate
from hypothesis import given, settings
from hypothesis import strategies as st

HEAD = '{"agentkv_trace": 1, "name": "day"}'
FIRST = '{"messages": [{"id": "a", "tokens": 3}, {"id": "b", "tokens": 5, "order_free": true}]}'


def lines(trace: Trace) -> list[str]:
    text = io.StringIO()
    dump(trace, text)
    return text.getvalue().splitlines()


@pytest.mark.parametrize("name", GENERATORS)
def test_every_loop_is_written_and_read(name: str, tmp_path: Path) -> None:
    trace = generate(name, 12, seed=5)
    assert parse(lines(trace)) == trace
    save(trace, tmp_path / "trace.jsonl")
    assert load(tmp_path / "trace.jsonl") == trace


@pytest.mark.parametrize("name", GENERATORS)
def test_loops_are_seeded(name: str) -> None:
    assert generate(name, 20, 1) == generate(name, 20, 1) != generate(name, 20, 2)
    assert len(generate(name, 20, 1).turns) == 20


def test_a_message_is_written_out_once() -> None:
    trace = parse(
        [HEAD, FIRST, '{"messages": ["a", "b"], "answer": {"id": "c", "tokens": 2}, "window": "w"}']
    )
    assert trace.turns[1].messages == trace.turns[0].messages
    assert [line.count('"tokens"') for line in lines(trace)] == [0, 2, 1]
    assert trace.events == 4


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"messages": ["c"]}', "message 'c'"),
        ('{"messages": []}', "at least 1 item"),
        ("[]", "list"),
        ("{", "Expecting property name"),
        ('{"messages": [{"id": "c", "tokens": 0}]}', "greater than 0 at tokens"),
        ('{"messages": [{"id": "c", "tokens": 1, "colour": 2}]}', "colour"),
        ('{"messages": [{"id": "a", "tokens": 4}]}', "message 'a' of 4 tokens"),
        ('{"messages": [{"id": "u", "kind": "user", "tokens": 4, "order_free": true}]}', "order_free"),
        ('{"messages": ["a"], "when": 3}', "when"),
        ('{"messages": "a"}', "messages"),
        ('{"messages": [7]}', "message"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_an_error_names_its_line(line: str, said: str) -> None:
    with pytest.raises(TraceError) as told:
        parse([HEAD, FIRST, "", line])
    assert told.value.got.startswith("line 4 of the trace: ")
    assert said in str(told.value)


keys = st.sampled_from(["messages", "id", "tokens"]) | st.text(max_size=3)
pages = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(page=pages)
def test_anything_else_is_a_trace_error(page: object) -> None:
    """No line of JSON gets another error out of the reader, whatever it holds."""
    with suppress(TraceError):
        parse([HEAD, FIRST, json.dumps(page)])


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="check the path"):
        load(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="UTF-8"):
        load(tmp_path / "binary")
    (tmp_path / "head").write_text(HEAD)
    with pytest.raises(TraceError, match="0 turns"):
        load(tmp_path / "head")


def test_unknown_loops_and_no_turns_are_refused() -> None:
    with pytest.raises(TraceError, match="one of screenshots"):
        generate("sleep", 3)
    with pytest.raises(TraceError, match="at least one"):
        generate("clock", 0)
