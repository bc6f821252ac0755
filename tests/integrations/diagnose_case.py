"""A diagnosis over a tiny random model and made-up texts, small enough for every test to run its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from agentkv import Engine
from agentkv.diagnose import documents
from agentkv.diagnose.command import Options, run
from agentkv.diagnose.measure import Texts, sample
from agentkv.diagnose.probe import Probe
from agentkv.diagnose.report import Diagnosis
from agentkv.diagnose.sample import Sample
from tests.runtime.cases import words

TOKENS, CHUNKS, WINDOWS = 19, 4, 2
TEXTS = [(f"text{i}", words(23 + 11 * i, seed=100 + i)) for i in range(10)]
QUESTIONS = ("w20 w31 w42 w53 w64", "w21 w22 w23")


def options(folder: Path, **changes: Any) -> Options:
    """A run that writes to ``folder``."""
    small = {"windows": WINDOWS, "chunk_tokens": TOKENS, "chunks": CHUNKS, "out": folder / "run.json"}
    return Options(**{**small, **changes})


def diagnosed(engine: Engine, folder: Path, texts: Any = TEXTS, **changes: Any) -> Diagnosis:
    """The whole run, gates to cost table, without a terminal."""
    return run(engine, options(folder, **changes), texts, lambda what, done: None)


def first_sample(engine: Engine) -> Sample:
    """The first window of `diagnosed`."""
    shape = Texts(engine, TOKENS)
    pool = documents.tokenised(shape.encode, TEXTS, shape.body)
    measured, _ = documents.split(pool, CHUNKS, 0)
    pieces = documents.windows(measured, 1, CHUNKS, shape.body, 0)[0]
    longest = len(engine.sink) + CHUNKS * TOKENS + max(map(len, shape.questions))
    return sample(Probe(engine, longest), shape, pieces, 0)


def ids(*parts: np.ndarray) -> list[int]:
    """Token ids one behind the other."""
    return [int(x) for part in parts for x in part]


def close(a: float, b: float) -> bool:
    """Equal KLs up to what fp64 leaves of them."""
    return abs(a - b) <= 1e-9 * max(1.0, abs(a)) and torch.isfinite(torch.tensor(a)).item()
