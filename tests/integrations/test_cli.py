"""The command line: what it prints, and how it fails."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from agentkv import Engine
from agentkv.demo import command
from agentkv.demo.story import STEPS
from agentkv.models.families import FAMILIES
from tests.integrations.conftest import Call
from tests.integrations.demo_case import LIBRARY, tiny_engine


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The demo over a tiny model and made-up documents."""
    with tiny_engine() as engine:

        @contextmanager
        def loaded(source: Any) -> Iterator[Engine]:
            yield engine

        monkeypatch.setattr(command.Engine, "from_pretrained", loaded)
        monkeypatch.setattr(command, "choose_documents", lambda tokenizer, sizes: LIBRARY)
        yield


def test_version(call: Call) -> None:
    assert call("--version") == (0, f"agentkv {version('agentkv-window')}\n", "")


def test_help(call: Call) -> None:
    code, out, _ = call("--help")
    assert code == 0
    assert all(word in out for word in ("demo", "models", "--version", "--install-completion"))
    code, out, _ = call("demo", "--help")
    assert code == 0
    assert all(f"--{name}" in out for name in ("json", "plot", "model", "policy", "quick", "threads"))


def test_models(call: Call) -> None:
    """Every family with its reason, as JSON and as a table."""
    code, out, _ = call("models", "--json")
    assert code == 0
    found = {row["model_type"]: row for row in json.loads(out)}
    assert set(found) == set(FAMILIES)
    assert found["mamba"]["reason"] == FAMILIES["mamba"].reason
    latent = found["deepseek_v2"]
    slots = (latent["content_slot"], latent["rope_slot"], latent["style"])
    assert slots == ("keys", "values", "interleaved")
    assert (found["qwen3_vl"]["axes"], found["qwen3_vl"]["sections"]) == (3, "interleaved")
    code, out, _ = call("models")
    assert code == 0
    assert all(name in out for name in FAMILIES)
    assert all(family.status in out for family in FAMILIES.values())


def test_demo(call: Call, tiny: None, tmp_path: Path) -> None:
    """The whole command: strips, table and verdict on stdout, numbers and picture in files."""
    pytest.importorskip("matplotlib")
    json_path, plot_path = tmp_path / "run.json", tmp_path / "run.png"
    code, out, _ = call("demo", "--model", "tiny", "--quick", "--json", json_path, "--plot", plot_path)
    assert code == 0
    assert len(json.loads(json_path.read_text())["turns"]) == len(STEPS)
    assert plot_path.read_bytes()[:4] == b"\x89PNG"
    assert "balanced: first token after" in out
    assert all(step.event in out for step in STEPS)


def test_demo_model_not_found(call: Call, tmp_path: Path) -> None:
    code, _, err = call("demo", "--model", tmp_path / "none")
    assert code == 2
    assert "does not exist" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_demo_unwritable(call: Call, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that cannot be written is refused before a model is loaded."""
    monkeypatch.setattr(command, "_play", lambda *args: pytest.fail("it ran"))
    code, _, err = call("demo", option, tmp_path / "none" / "x.png")
    assert code == 2
    assert "cannot be written" in err


def test_demo_unknown_policy(call: Call) -> None:
    code, _, err = call("demo", "--policy", "bold")
    assert code == 2
    assert "balanced" in err


def test_demo_check_failed(call: Call, tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the arms disagree there is a message, no table and no JSON."""
    from agentkv.demo import measure

    monkeypatch.setattr(measure, "LOGITS", dict.fromkeys(measure.LOGITS, -1.0))
    code, out, err = call("demo", "--json", tmp_path / "run.json")
    assert code == 2
    assert "no number of this run can be trusted" in err
    assert "sooner" not in out
    assert not (tmp_path / "run.json").exists()


def test_demo_interrupted(call: Call, tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C: 130, a line, and the JSON that was there before."""

    def interrupt(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "live_line", interrupt)
    path = tmp_path / "run.json"
    path.write_text("old")
    code, _, err = call("demo", "--json", path)
    assert code == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert path.read_text() == "old"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_demo_real(tmp_path: Path) -> None:
    """`agentkv demo --quick --json` on the embedded model, as a user runs it."""
    path = tmp_path / "run.json"
    command_line = [sys.executable, "-m", "agentkv.cli", "demo", "--quick", "--json", str(path)]
    done = subprocess.run(command_line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text())
    assert len(found["turns"]) == len(STEPS)
    assert found["turns"][0]["kl"] < 1e-6
    assert found["summary"]["mean_agreement"] > 0.5
    assert found["summary"]["total_reused_tokens"] > found["summary"]["total_recomputed_tokens"]
