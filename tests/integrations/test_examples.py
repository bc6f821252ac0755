"""The examples run as they are, with models that need no download, and print what they measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "agents"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def run(name: str, folder: Path, *options: str) -> tuple[str, list[dict[str, Any]]]:
    """What an example prints, and the calls that it measured."""
    out, picture = folder / "run.json", folder / "run.png"
    found = subprocess.run(
        [
            sys.executable,
            str(FOLDER / name),
            "--threads",
            "1",
            "--json",
            str(out),
            "--plot",
            str(picture),
            *options,
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "120"},
        check=False,
    )
    assert found.returncode == 0, found.stderr[-2000:]
    assert picture.read_bytes().startswith(b"\x89PNG")
    turns: list[dict[str, Any]] = json.loads(out.read_text())["turns"]
    assert all(0 <= turn["kl"] < 1 and 0 <= turn["agreement"] <= 1 for turn in turns)
    for turn in turns:
        usage = turn["usage"]
        assert usage["cache_read"] + usage["agentkv_patched"] + usage["cache_creation"] == turn["tokens"]
        assert turn["computed"]["re-prefill"] == turn["tokens"]
    return found.stdout, turns


def computed(turns: list[dict[str, Any]], arm: str) -> int:
    return sum(turn["computed"][arm] for turn in turns)


def test_research_agent(tmp_path: Path) -> None:
    said, turns = run("01_research_agent.py", tmp_path, "--turns", "4", "--answer-tokens", "8")
    assert len(turns) == 4
    assert "longest prefix" in said
    assert computed(turns, "agentkv") < computed(turns, "longest prefix")


def test_exact_policy_has_no_kl(tmp_path: Path) -> None:
    options = ("--turns", "3", "--answer-tokens", "8", "--policy", "exact")
    _, turns = run("01_research_agent.py", tmp_path, *options)
    assert all(turn["kl"] < 1e-6 and turn["agreement"] == 1 for turn in turns)


def test_a_folder_without_documents_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "01_research_agent.py"), "--folder", str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert "passages" in found.stderr


def test_screenshot_planner(tmp_path: Path) -> None:
    said, turns = run("02_screenshot_planner.py", tmp_path, "--model", "tiny", "--tasks", "1", "--clock")
    assert "1 of 1 tasks done" in said
    assert computed(turns, "agentkv") < computed(turns, "longest prefix")


def test_long_video(tmp_path: Path) -> None:
    options = ("--model", "tiny", "--seconds", "60", "--step", "3", "--live", "6", "--questions", "3")
    said, _ = run("03_long_video_qa.py", tmp_path, *options)
    assert " 0 encoded again" in said


def test_many_agents(tmp_path: Path) -> None:
    said, turns = run("04_many_agents.py", tmp_path, "--model", "tiny", "--steps", "2")
    assert "2 runs of the vision tower, 3 windows" in said
    assert len(turns) == 6
    assert computed(turns, "agentkv") < computed(turns, "re-prefill")
