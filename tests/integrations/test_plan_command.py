"""`agentkv plan`: the plan that a window would make, from files and without a model."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agentkv_orchestrator.errors import PlanError
from agentkv_orchestrator.files import read_residency, read_wanted, write_residency, write_wanted
from agentkv_orchestrator.plan import Plan
from agentkv_orchestrator.policy import Policy
from agentkv_orchestrator.residency import FrozenResidency
from hypothesis import given, settings

from agentkv import Window, cli
from agentkv.errors import InvalidInput
from agentkv.testing import recording_engine
from tests.integrations.conftest import Call
from tests.orchestrator.fake_machine import Session
from tests.orchestrator.test_random_edits import play
from tests.runtime.cases import words
from tests.runtime.script import Edit, Script, scripts
from tests.strategies import edits, policies


def edited(window: Window) -> None:
    """A window with something stored, something stale and noted edits of most kinds."""
    system = window.append(words(40, 1), kind="system", pin=True)
    a, b, c = (window.append(words(60, n), kind="document") for n in (2, 3, 4))
    window.commit()
    window.evict(a)
    window.commit()
    window.recall(a, before=c)
    window.evict(b)
    window.clean_view(c)
    window.append(words(9, 5))
    window.replace(system, words(41, 6))


@pytest.fixture
def situation(tmp_path: Path) -> tuple[list[str], Plan]:
    """The exported command, and the plan that the window itself makes."""
    with recording_engine() as engine:
        window = engine.window(Policy(kl_budget=0.02, stash=False))
        edited(window)
        return shlex.split(window.export(tmp_path / "a folder"))[1:], window.plan()


def test_the_files_of_a_window_give_its_own_plan(call: Call, situation: tuple[list[str], Plan]) -> None:
    command, plan = situation
    code, out, err = call(*command, "--format", "json")
    assert (code, err) == (0, "")
    assert Plan.from_json(out) == plan


@settings(max_examples=25, deadline=None)
@given(script=scripts(most=10), policy=policies)
def test_any_window_and_its_files_plan_alike(
    script: list[Edit], policy: Policy, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("export")
    with recording_engine() as engine:
        player = Script(engine.window(policy))
        player.play(script)
        out = folder / "plan.json"
        arguments = shlex.split(player.window.export(folder))[1:]
        with pytest.raises(SystemExit) as stopped:
            cli.app([*arguments, "--format", "json", "--out", str(out)])
        assert stopped.value.code == 0
        assert Plan.from_json(out.read_text()) == player.window.plan()


def test_the_text_calls_messages_by_their_names(call: Call, situation: tuple[list[str], Plan]) -> None:
    _, out, _ = call(*situation[0])
    assert out.startswith("balanced: ")
    assert "the edit: left: " in out
    assert "document 'w" in out
    assert "% of" in out


@pytest.mark.parametrize(("fmt", "start"), [("mermaid", "flowchart LR"), ("html", "<!doctype html>")])
def test_pictures_go_to_a_file(
    fmt: str, start: str, call: Call, situation: tuple[list[str], Plan], tmp_path: Path
) -> None:
    out = tmp_path / f"plan.{fmt}"
    assert call(*situation[0], "--format", fmt, "--out", out) == (0, "", "")
    assert out.read_text().startswith(start)
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_a_window_may_be_asked_for_as_it_stands_in_another_file(call: Call, tmp_path: Path) -> None:
    session = Session()
    session.go([session.place(name, 10) for name in "abc"])
    before = session.graph
    session.go(session.wanted[1:], "fast")
    for name, graph in (("a", before), ("b", session.graph)):
        (tmp_path / f"{name}.json").write_text(graph.to_json())
    code, out, _ = call("plan", "--window", tmp_path / "a.json", "--want", tmp_path / "b.json")
    assert code == 0
    assert "the edit: left: a#1" in out
    assert [w.uid for w in read_wanted(session.graph.to_json())] == [2, 3]


def test_no_model_library_is_imported(situation: tuple[list[str], Plan]) -> None:
    """Nor does it take longer than a second of CPU time."""
    command, _ = situation
    script = (
        "import sys, time; from agentkv import cli\n"
        f"sys.argv = ['agentkv', *{command!r}]\n"
        "try: cli.main()\n"
        "except SystemExit as stopped: assert not stopped.code\n"
        "heavy = {'torch', 'transformers', 'numba', 'matplotlib'} & set(sys.modules)\n"
        "print('heavy', sorted(heavy), 'seconds', time.process_time())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    *_, last = done.stdout.splitlines()
    assert last.startswith("heavy [] ")
    assert float(last.split()[-1]) < 1


UNNAMED = '{"uid": 77, "chunk": {"id": "a", "kind": "x", "length": 3}}'
CONTEXTS = '"contexts": {"k": {"chunks": [[0, 1]], "tokens": 3}}'
BAD: dict[str, tuple[str, Any, str]] = {
    "missing": ("window", None, "No such file"),
    "no JSON": ("want", "{[", "Invalid JSON"),
    "no JSON list": ("want", "[[", "Invalid JSON"),
    "no text": ("want", b"\xff\xfe", "JSON in UTF-8"),
    "wrong field": ("want", f"[{UNNAMED.replace('3', 'null')}]", "0.chunk.length"),
    "unknown field": ("residency", '{"residents": {"a": {"patch": []}}}', "residents.a.patch"),
    "wrong context": ("residency", f'{{"residents": {{}}, "ids": ["a"], {CONTEXTS}}}', "under key k"),
    "antecedents": ("residency", f'{{"residents": {{}}, {CONTEXTS}}}', "stretch of the 0 ids"),
    "costs": ("costs", '{"model": "m"}', "hardware"),
    "names": ("names", '{"one": "system"}', "object of names by uid"),
    "uid twice": ("want", f"[{UNNAMED}, {UNNAMED}]", "uid 77 twice"),
    "another chunk": ("want", None, "give edited content a fresh uid"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_input_gives_one_message(
    case: str, call: Call, situation: tuple[list[str], Plan], tmp_path: Path
) -> None:
    command, _ = situation
    option, text, message = BAD[case]
    path = Path(command[command.index(f"--{option}") + 1])
    if case == "another chunk":
        first = json.loads(path.with_name("window.json").read_text())["placements"][0]
        text = json.dumps([{"uid": first["uid"], "chunk": {"id": "other", "kind": "x", "length": 3}}])
    if text is None:
        path.unlink()
    else:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    code, out, err = call(*command, "--out", tmp_path / "plan")
    assert (code, out) == (2, "")
    assert err.startswith("agentkv: got ")
    assert len(err.strip().splitlines()) == 1
    assert message in err
    if case not in ("uid twice", "another chunk"):
        assert path.name in err
    assert not (tmp_path / "plan").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-rows", "50"], "raise --max-rows"),
        (["--capacity", "10", "--max-rows", "4096"], "at least the"),
        (["--kl-budget", "nan"], "--kl-budget nan"),
        (["--kl-budget", "-1"], "at least 0"),
        (["--policy", "best"], "best"),
        (["--format", "pdf"], "pdf"),
        (["--out", "/nonexistent/plan"], "pass another --out"),
    ],
)
def test_a_bad_option_gives_one_message(
    arguments: list[str], message: str, call: Call, situation: tuple[list[str], Plan]
) -> None:
    code, out, err = call(*situation[0], *arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_what_does_not_fit_is_refused(call: Call, tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text('{"placements": [], "revision": 0}')
    wanted = [{"uid": 1, "chunk": {"id": "a", "kind": "x", "length": 30}}]
    (tmp_path / "b.json").write_text(json.dumps(wanted))
    code, _, err = call(
        "plan", "--window", tmp_path / "w.json", "--want", tmp_path / "b.json", "--max-rows", 20
    )
    assert code == 2
    assert "got 30 rows" in err
    assert call("plan", "--window", tmp_path / "w.json", "--want", tmp_path / "b.json")[0] == 0


def test_an_export_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with recording_engine() as engine, pytest.raises(InvalidInput, match="a folder that can be written to"):
        engine.window().export(tmp_path / "file")


@settings(max_examples=60, deadline=None)
@given(edits, policies)
def test_wanted_lists_and_residencies_come_back(script: list, policy: Policy) -> None:
    session = Session(max_rows=300)
    play(session, script, policy)
    held = session.machine.store.residency()
    assert read_residency(write_residency(held)) == held
    assert write_residency(read_residency(write_residency(held))) == write_residency(held)
    assert read_wanted(write_wanted(session.wanted)) == session.wanted


def test_an_empty_residency_is_the_default() -> None:
    assert read_residency('{"residents": {}}') == FrozenResidency()
    with pytest.raises(PlanError, match="a residency"):
        read_residency("[]")
