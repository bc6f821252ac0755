"""`agentkv simulate`: what it prints, and how it fails."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import agentkv_orchestrator.simulate
import pytest
from agentkv_orchestrator.simulate import ARMS, Report
from agentkv_orchestrator.simulation.shape import Shape
from agentkv_orchestrator.trace import load, save
from agentkv_orchestrator.traces import GENERATORS, generate

from tests.integrations.conftest import Call


@pytest.fixture
def call(call: Call) -> Call:
    """`agentkv simulate` with these arguments."""
    return partial(call, "simulate")


def test_help_and_list(call: Call) -> None:
    code, out, _ = call("--help")
    assert code == 0
    assert all(word in out for word in ("TRACE|GENERATOR", "--evictor", "--store-bytes", "--json", "--list"))
    code, out, _ = call("--list")
    assert code == 0
    assert all(name in out for name in (*GENERATORS, *ARMS))


def test_a_loop_as_a_table_and_as_json(call: Call) -> None:
    code, out, _ = call("rerank", "--turns", 5)
    assert code == 0
    assert all(arm in out for arm in ARMS)
    assert "No plan takes less than" in out
    code, out, _ = call("rerank", "--turns", 5, "--json", "--arm", "re-prefill", "--arm", "agentkv fast")
    assert code == 0
    report = Report.model_validate_json(out)
    assert [arm.arm for arm in report.arms] == ["re-prefill", "agentkv fast"]
    assert report.turns == 5


def test_a_file_is_what_was_written(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "loop.jsonl"
    code, generated, _ = call("video", "--turns", 6, "--seed", 3, "--write", path, "--json")
    assert code == 0
    assert load(path) == generate("video", 6, 3)
    code, read, _ = call(path, "--json")
    assert code == 0
    assert figures(read) == figures(generated)


def figures(text: str) -> Any:
    report = json.loads(text)
    for arm in report["arms"]:
        del arm["seconds"]
    return report


def test_options_reach_the_simulation(call: Call, tmp_path: Path) -> None:
    shape = tmp_path / "shape.json"
    shape.write_text(Shape.shipped().model_copy(update={"itemsize": 8}).model_dump_json())
    arguments = ("recall", "--turns", 40, "--arm", "agentkv balanced", "--json")
    small = figures(call(*arguments, "--store-bytes", 30_000_000, "--evictor", "random")[1])
    assert small["evictor"] == "random"
    assert small["arms"][0]["store_evictions"] > 0
    plain, wide = figures(call(*arguments)[1]), figures(call(*arguments, "--shape", shape)[1])
    assert wide["arms"][0]["store_peak_bytes"] > plain["arms"][0]["store_peak_bytes"]
    assert figures(call(*arguments, "--no-settle")[1])["arms"][0]["idle_ms"] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no trace"),
        (("sleep",), "one of screenshots"),
        (("none.jsonl",), "none.jsonl"),
        (("clock", "--arm", "magic"), "one of re-prefill"),
        (("clock", "--costs", "none.json"), "none.json"),
        (("clock", "--turns", "0"), "turns"),
        (("clock", "--evictor", "magic"), "benefit"),
        (("clock", "--turns", "2", "--write", "none/trace.jsonl"), "cannot be written"),
    ],
)
def test_bad_arguments_are_one_message(call: Call, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_a_bad_line_is_named(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    save(generate("clock", 3), path)
    path.write_text(path.read_text() + '{"messages": ["nobody"]}\n')
    code, _, err = call(path)
    assert code == 2
    assert "line 5 of bad.jsonl: message 'nobody'" in err


def test_an_interruption_is_told(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(agentkv_orchestrator.simulate, "simulate", interrupt)
    code, out, err = call("clock")
    assert (code, out) == (130, "")
    assert "interrupted" in err


def test_no_torch_is_imported() -> None:
    """The command answers at once, also where there is no torch."""
    code = (
        "import sys; from agentkv import cli; sys.argv = ['agentkv', 'simulate', 'clock', '--turns', '2']\n"
        "try:\n    cli.main()\nexcept SystemExit:\n    pass\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
