"""`agentkv diagnose` as a user meets it: files, resuming, refusals, exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from agentkv import Engine, cli
from agentkv.demo import picture
from agentkv.diagnose import command, gates, measure
from agentkv.diagnose.errors import BrokenState, OtherRun
from agentkv.diagnose.report import Diagnosis, Summary, WindowRecord
from tests.integrations.diagnose_case import CHUNKS, QUESTIONS, TEXTS, TOKENS, diagnosed
from tests.runtime import cases

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions in words that the tiny tokenizer knows, and ops timed in short windows."""
    monkeypatch.setattr(measure, "QUESTIONS", QUESTIONS)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with cases.engine("llama", torch.float64, chat=True) as built:
        yield built


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a run of one window."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch, cases.engine("llama", torch.float64, chat=True) as engine:
        patch.setattr(measure, "QUESTIONS", QUESTIONS)
        diagnosed(engine, folder, windows=1)
    return (folder / "run.json").read_bytes()


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder of text files, one of them deeper down and one that is no text."""
    folder = tmp_path / "texts"
    (folder / "more").mkdir(parents=True)
    for name, text in TEXTS:
        (folder / ("more" if name == "text3" else ".") / f"{name}.md").write_text(text)
    (folder / "picture.png").write_bytes(b"\x89PNG\xff")
    return folder


@pytest.fixture
def call(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Call:
    """`agentkv diagnose` with these arguments over the tiny model: exit code, stdout, stderr."""

    @contextmanager
    def loaded(source: Any, device: str) -> Iterator[Engine]:
        yield engine

    def run(*arguments: object, small: bool = True) -> tuple[int, str, str]:
        shape = ["--windows", "1", "--chunks", str(CHUNKS), "--chunk-tokens", str(TOKENS)] if small else []
        monkeypatch.setattr(sys, "argv", ["agentkv", "diagnose", *shape, *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        out = capsys.readouterr()
        return int(stopped.value.code or 0), out.out, out.err

    monkeypatch.setattr(command.Engine, "from_pretrained", loaded)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return run


def test_a_run_that_was_killed_goes_on(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in its second window, it keeps the first, and ends as one that was not stopped."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    real, started = command.measure, []

    def stops(*arguments: Any) -> WindowRecord:
        started.append(arguments[-1])
        if len(started) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(command, "measure", stops)
    with pytest.raises(KeyboardInterrupt):
        diagnosed(engine, tmp_path / "a", windows=3)
    kept = Diagnosis.model_validate_json((tmp_path / "a" / "run.json").read_text())
    assert len(kept.windows) == 1
    assert kept.summary is not None
    assert kept.summary.n == 1
    resumed = diagnosed(engine, tmp_path / "a", windows=3)
    assert started == [0, 1, 1, 2]
    assert resumed == diagnosed(engine, tmp_path / "b", windows=3)


def test_more_windows_are_added_and_none_is_measured_twice(
    engine: Engine, tmp_path: Path, finished: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.json").write_bytes(finished)
    second = diagnosed(engine, tmp_path, windows=2)
    assert second.windows[:1] == Diagnosis.model_validate_json(finished).windows
    assert len(second.windows) == 2
    monkeypatch.setattr(command, "measure", lambda *args: pytest.fail("measured again"))
    assert diagnosed(engine, tmp_path, windows=1) == second


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"seed": 1}, "seed"), ({"chunk_tokens": 18}, "chunk_tokens"), ({"chunks": 3}, "chunks")],
)
def test_other_settings_are_refused(
    engine: Engine, tmp_path: Path, finished: bytes, changes: dict[str, Any], word: str
) -> None:
    (tmp_path / "run.json").write_bytes(finished)
    with pytest.raises(OtherRun, match=word):
        diagnosed(engine, tmp_path, windows=1, **changes)
    assert (tmp_path / "run.json").read_bytes() == finished


def test_a_run_goes_on_from_wherever_its_texts_are(
    engine: Engine, tmp_path: Path, finished: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.json").write_bytes(finished)
    monkeypatch.setattr(command, "measure", lambda *args: pytest.fail("measured again"))
    diagnosed(engine, tmp_path, [(f"elsewhere/{name}", text) for name, text in TEXTS], windows=1)


def test_other_texts_and_another_model_are_refused(engine: Engine, tmp_path: Path, finished: bytes) -> None:
    (tmp_path / "run.json").write_bytes(finished)
    with pytest.raises(OtherRun, match="digest"):
        diagnosed(engine, tmp_path, [("text0", cases.words(99)), *TEXTS[1:]], windows=1)
    with (
        cases.engine("llama", torch.float32, chat=True) as other,
        pytest.raises(OtherRun, match="fingerprint"),
    ):
        diagnosed(other, tmp_path, windows=1)


@pytest.mark.parametrize("damage", ["half", "empty", "other", "binary", "version"])
def test_a_damaged_file_is_refused(engine: Engine, tmp_path: Path, finished: bytes, damage: str) -> None:
    path, text = tmp_path / "run.json", finished.decode()
    broken = {
        "half": text[: len(text) // 2].encode(),
        "empty": b"",
        "other": b'{"turns": []}',
        "binary": b"\xff\xfe\x00",
        "version": text.replace('"version": 2', '"version": 1').encode(),
    }[damage]
    path.write_bytes(broken)
    with pytest.raises(BrokenState, match="agentkv diagnose"):
        diagnosed(engine, tmp_path, windows=1)
    assert path.read_bytes() == broken


def test_the_table(call: Call, texts: Path, tmp_path: Path) -> None:
    """Every figure, and where the files are."""
    pytest.importorskip("matplotlib")
    code, out, _ = call("--data", texts, "--out", "run.json", "--plot", "run.png")
    assert code == 0
    for words in (
        "blind",
        "patch of rank 32",
        "slide, 2 of 4 leave",
        "10 % of the tokens",
        "functional rank",
    ):
        assert words in out
    assert "agentkv calibrate" in out
    assert (tmp_path / "run.png").read_bytes()[:4] == b"\x89PNG"
    found = Diagnosis.model_validate_json((tmp_path / "run.json").read_text())
    assert found.settings.documents == len(TEXTS)


def test_json(call: Call, texts: Path, tmp_path: Path) -> None:
    """One object on stdout, with the documented keys and nothing else; default names come from the model."""
    code, out, _ = call("--data", texts, "--json", "--model", "some/tiny model")
    assert code == 0
    found = json.loads(out)
    assert set(found) == {
        "version", "model", "settings", "hardware", "gates", "windows", "summary",
    }  # fmt: skip
    assert set(found["summary"]) == set(Summary.model_fields)
    assert set(found["windows"][0]) == set(WindowRecord.model_fields)
    assert found == json.loads((tmp_path / "diagnose-tiny-model.json").read_text())


def test_the_page_lists_every_key() -> None:
    """docs/diagnose.md is the promise; the models are what is kept."""
    page = (Path(__file__).parents[2] / "docs" / "diagnose.md").read_text()
    names = {*Diagnosis.model_fields, *Summary.model_fields, *WindowRecord.model_fields}
    assert not sorted(name for name in names if f"`{name}`" not in page)


def test_a_failed_gate_prints_no_number(
    call: Call, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "LOGITS", {torch.float64: -1.0})
    code, out, err = call("--data", texts, "--out", "run.json")
    assert code == 2
    assert "no number of this run can be trusted" in " ".join(err.split())
    assert out == ""
    assert not (tmp_path / "run.json").exists()


@pytest.mark.parametrize(
    ("done", "words"), [(0, "nothing was written"), (1, "run.json; the same command goes on from there")]
)
def test_interrupted(call: Call, texts: Path, done: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the first window and in the second one: exit code 130, and what is left."""
    real, left = command.measure, [*range(done)]

    def stops(*arguments: Any) -> WindowRecord:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return real(*arguments)

    monkeypatch.setattr(command, "measure", stops)
    code, out, err = call("--data", texts, "--out", "run.json", "--windows", "2")
    assert code == 130
    assert words in err
    assert "Traceback" not in err
    assert out == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "none"], "does not exist"),
        (["--data", "empty.txt"], "which is empty"),
        (["--data", "blank.txt"], "which is empty"),
        (["--data", "texts/picture.png"], "cannot be read as UTF-8"),
        (["--data", "bare"], "a folder without a file"),
        (["--data", "texts/text0.md"], "1 texts that are long enough"),
        (["--data", "texts", "--chunk-tokens", "2"], "the chat template takes for itself"),
        (["--data", "texts", "--chunk-tokens", "100000"], "0 texts that are long enough"),
        (["--data", "texts", "--out", "none/run.json"], "cannot be written"),
        (["--data", "texts", "--plot", "run.pdf"], "ends in .png or .svg"),
        (["--data", "texts", "--device", "meta:"], "a device that torch can use"),
        (["--data", "texts", "--device", "toaster"], "a device that torch can use"),
    ],
)
def test_bad_input(call: Call, texts: Path, tmp_path: Path, arguments: list[str], words: str) -> None:
    """One message, exit code 2, and no file."""
    (tmp_path / "empty.txt").touch()
    (tmp_path / "blank.txt").write_text(" \n\n")
    (tmp_path / "bare").mkdir()
    before = sorted(tmp_path.iterdir())
    code, out, err = call(*arguments)
    assert code == 2
    assert words in " ".join(err.split())
    assert "Traceback" not in err
    assert out == ""
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("arguments", [["--windows", "0"], ["--chunks", "2"], ["--threads", "0"]])
def test_numbers_out_of_range(call: Call, arguments: list[str]) -> None:
    code, _, err = call(*arguments, small=False)
    assert code == 2
    assert arguments[0] in err


def test_no_matplotlib(call: Call, texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "find_spec", lambda name: None)
    code, _, err = call("--data", texts, "--plot", "run.png")
    assert code == 2
    assert "agentkv-window[plot]" in err


def test_no_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Refusals of the loader come through as they are."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mamba").mkdir()
    (tmp_path / "mamba" / "config.json").write_text('{"model_type": "mamba"}')
    for name, words in (("./none", "does not exist"), ("./mamba", "recurrent")):
        monkeypatch.setattr(sys, "argv", ["agentkv", "diagnose", "--model", name])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        assert stopped.value.code == 2
        assert words in capsys.readouterr().err


def test_help(call: Call) -> None:
    code, out, _ = call("--help", small=False)
    assert code == 0
    names = ("model", "data", "windows", "chunk-tokens", "chunks", "seed", "threads", "device", "out")
    assert all(f"--{name}" in out for name in (*names, "json", "plot"))


def test_the_library_call_checks_its_options(tmp_path: Path) -> None:
    """The same limits hold without typer in front."""
    from rich.console import Console

    from agentkv.errors import InvalidInput

    with pytest.raises(InvalidInput, match="chunks 2"):
        command.diagnose(Console(), command.Options(chunks=2, out=tmp_path / "run.json"))
