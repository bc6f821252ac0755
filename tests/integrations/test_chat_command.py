"""`agentkv chat`: what lines do, what is shown, and that a mistake changes nothing."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from agentkv import Engine
from agentkv.chat.session import COMMANDS, Session
from agentkv.chat.view import everything, strip
from agentkv.cli import app
from tests.runtime.cases import assert_exact, engine, words


@pytest.fixture
def session() -> Iterator[Session]:
    with engine(chat=True) as built, built.window("balanced") as window:
        console = Console(file=io.StringIO(), width=100)
        yield Session(console, window, 4, as_json=False)


def said(session: Session) -> str:
    file: Any = session.console.file
    text = str(file.getvalue())
    file.seek(0)
    file.truncate()
    return text


@pytest.mark.parametrize(
    "line", ["/read John's file.txt", "/evict \u00b2", "/slide \u00b2", "/read /no/such", "/evict", "/nosuch"]
)
def test_a_line_that_means_nothing_is_told_and_changes_nothing(session: Session, line: str) -> None:
    session.line(words(12, 1))
    said(session)
    before = session.window.content
    session.line(line)
    assert "expected" in said(session)
    assert session.window.content is before


def test_a_message_is_listed_as_it_was_written(session: Session) -> None:
    session.window.append("w3 [/home] [bold]w4", kind="note")
    session.line("/list")
    assert "[/home] [bold]w4" in said(session)


def test_talk_and_edit(session: Session) -> None:
    session.line(words(12, 1))
    assert "to the first token" in said(session)
    session.line(words(9, 2))
    assert len(session.window.content.order) == 4
    session.line("/evict 1")
    assert len(session.window.content.order) == 3
    session.line("/list")
    assert "evicted" in said(session)
    session.line("/recall 4")  # those that left come behind those that are there
    assert len(session.window.content.order) == 4
    session.line("/undo")
    assert len(session.window.content.order) == 3
    session.line("/pin 1")
    assert everything(session.window)[0].pinned
    session.line("/pin 1")
    assert not everything(session.window)[0].pinned
    session.line("/policy exact")
    assert session.window.policy.name == "exact"
    session.line("/slide 20")
    assert session.window.content.tokens <= 20
    assert_exact(session.window)
    said(session)
    for command in ("/explain", "/window", "/audit", "/help", ""):
        session.line(command)
    shown = said(session)
    assert "re-prefill" in shown
    assert all(f"/{name}:" in shown for name in COMMANDS)
    session.line("/quit")
    assert session.over


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("/nope", "/nope"),
        ("/evict", "a number from 1 to 1"),
        ("/evict 9", "a number from 1 to 1"),
        ("/recall 1", "which is in the window"),
        ("/policy wild", "exact, balanced, fast"),
        ("/slide much", "a number of tokens"),
        ("/read no/such/file", "a file"),
        ("/undo 1 2", ""),
    ],
)
def test_a_mistake_is_told_and_changes_nothing(session: Session, line: str, error: str) -> None:
    session.window.append(words(5, 3))
    session.window.commit()
    before = session.window.ids().tolist()
    session.line(line)
    if error:
        assert error in " ".join(said(session).split())
        assert session.window.ids().tolist() == before


def test_a_file_becomes_a_message(session: Session, tmp_path: Path) -> None:
    path = tmp_path / "a file.md"
    path.write_text(words(30, 4))
    session.line(f'/read "{path}"')
    (entry,) = session.window.content.live()
    assert entry.handle.kind == "document"
    assert entry.handle.tokens == 32  # both marks


def test_a_strip_is_as_wide_as_it_may_be(session: Session) -> None:
    for seed in range(5):
        session.window.append(words(3 + 7 * seed, seed))
    session.window.commit()
    for cells in (1, 7, 40, 90):
        assert strip(session.window, cells).cell_len <= cells
    assert strip(session.window, 40).cell_len == 40


def test_lines_from_a_pipe_as_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def built(model: str | None, **settings: Any) -> Any:
        return engine(chat=True, **settings)

    monkeypatch.setattr(Engine, "from_pretrained", built)
    options = ["chat", "--json", "--answer-tokens", "3", "--system", words(4, 9), "--store", str(tmp_path)]
    found = CliRunner().invoke(app, options, input=f"{words(6, 1)}\n{words(5, 2)}\n/save one\n")
    assert found.exit_code == 0, found.output
    decoder, texts, turns = json.JSONDecoder(), found.output.strip(), []
    while texts.startswith("{"):
        turn, stop = decoder.raw_decode(texts)
        turns.append(turn)
        texts = texts[stop:].lstrip()
    assert texts == "one"
    assert [turn["recomputed"] > 0 for turn in turns] == [True, True]
    assert turns[1]["reused"] == turns[0]["window_tokens"]
    again = CliRunner().invoke(
        app, [*options[:4], "--store", str(tmp_path), "--open", "one"], input="/list\n"
    )
    assert again.exit_code == 0, again.output
    assert "pinned" in again.output
