"""The README shows only what was run: its snippets run here, its tables are those of the results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench import tables

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.slow
def test_the_snippets_run_and_answer(capsys: pytest.CaptureFixture[str]) -> None:
    scope: dict[str, object] = {}
    for source in blocks("python"):
        exec(compile(source, "README.md", "exec"), scope)
    said = capsys.readouterr().out
    assert "1902" in said  # the first question is about what stands in the window
    assert "Weber" in said  # and so is the second, after the report has left and come back
    assert "balanced:" in said


def test_the_first_snippet_fits_what_it_promises() -> None:
    assert len([line for line in blocks("python")[0].splitlines() if line]) <= 12


def test_make_knows_the_commands() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    commands = [line.split()[1:3] for block in blocks("console") for line in block.splitlines()]
    assert commands
    for tool, target in commands:
        assert tool == "make"
        assert target in targets


@pytest.mark.parametrize("name", tables.FILES)
def test_tables_are_those_of_the_results(name: str) -> None:
    text = (ROOT / name).read_text()
    assert tables.rendered(text) == text, "run python -m bench.tables"
    assert "<!-- table:" in text
