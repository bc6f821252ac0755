"""What computing some rows of reused chunks leaves of their error, by how the rows are chosen.

    python -m bench.eval.repair --windows 16 --threads 1

Windows of five 128-token READMEs behind a chat head; all but the first are canonicals put in place. Rows are
chosen by what the question attends (`agentkv.mending`, one set for all layers), at random, or from the front
of every chunk (EPIC's LegoLink), as many in all arms, and run through the model again in context.
KL(re-prefill ‖ arm) over the question's tokens, and η against blind reuse. All rows have to give the
re-prefill, or nothing is written.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentkv import Engine
from agentkv.audit import divergence
from agentkv.cache import Run, WindowKV
from agentkv.calibrate import hardware
from agentkv.config import EngineConfig
from agentkv.diagnose import documents
from agentkv.mending import neighbours
from agentkv.metrics import eta, interval
from agentkv.models import embedded, hf
from bench.eval.policies import QUESTIONS

LENGTH, SIZE = 128, 5
SHARES = (0.125, 0.25, 0.5, 1.0)
SAME = 1e-6


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("bench/results/repair_smollm2.json"))
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(args.threads)
    engine = Engine(hf.load(embedded.ensure()), EngineConfig())
    encoded = ((name, engine.tokenizer(text)["input_ids"]) for name, text in documents.readmes())
    pool = [documents.Document(name, tuple(ids)) for name, ids in encoded if len(ids) >= LENGTH]
    chosen = documents.windows(pool, args.windows, SIZE, LENGTH, seed=9)
    rows = [_window(engine, [np.asarray(p.ids) for p in pieces], i) for i, pieces in enumerate(chosen)]
    blind = [row["blind"] for row in rows]
    arms = {
        name: {"kl": interval([row[name] for row in rows]), "eta": eta([row[name] for row in rows], blind)}
        for name in rows[0]
    }
    head = {"model": engine.loaded.name, "hardware": hardware(), "threads": args.threads, "n": len(rows)}
    args.out.write_text(json.dumps(head | {"arms": arms}, indent=1) + "\n")
    for name, figures in arms.items():
        print(name, figures, flush=True)


def _window(engine: Engine, chunks: Sequence[np.ndarray], number: int) -> dict[str, float]:
    """KL by arm."""
    backend = engine.backend
    head = np.asarray(engine.tokenizer("<|im_start|>user\n")["input_ids"])
    text = f"\n\n{QUESTIONS[number % len(QUESTIONS)]}<|im_end|>\n<|im_start|>assistant\n"
    question = np.asarray(engine.tokenizer(text)["input_ids"])
    ids = np.concatenate([head, *chunks, question])
    asked = len(ids) - len(question)
    truth = backend.prefill(_room(engine, len(ids)), [Run(0, ids)], len(question))
    first = len(head) + LENGTH
    naive = _room(engine, len(ids))
    backend.prefill(naive, [Run(0, ids[:first])], keep=0)
    starts = range(first, asked, LENGTH)
    for start, chunk in zip(starts, chunks[1:], strict=True):
        backend.place(naive, start, backend.canonical(chunk))
    naive.end = len(ids)
    last = Run(asked, question)
    attention = backend.ask(naive, [last])
    before = backend.read(naive, 0, len(ids))
    found = {"blind": _kl(truth, backend.prefill(naive, [last], len(question)))}
    for share in SHARES:
        count = ceil(share * LENGTH)
        for name, rows in _picks(attention, starts, count, number).items():
            backend.place(naive, 0, before)
            runs = [*(Run(a, ids[a:b]) for a, b in neighbours(rows)), last]
            found[f"{name} {share:g}"] = _kl(truth, backend.prefill(naive, runs, len(question)))
    if found["attended 1"] > SAME:
        raise AssertionError(f"all rows computed again are off by {found['attended 1']}")
    return found


def _picks(attention: Tensor, starts: Sequence[int], count: int, seed: int) -> dict[str, list[int]]:
    """Rows by arm, `count` of every chunk."""
    draw = random.Random(seed)
    attended: list[int] = []
    for start in starts:
        best = torch.topk(attention[start : start + LENGTH], count).indices.sort().values
        attended += (best + start).tolist()
    return {
        "attended": attended,
        "random": [row for s in starts for row in sorted(draw.sample(range(s, s + LENGTH), count))],
        "first": [row for s in starts for row in range(s, s + count)],
    }


def _room(engine: Engine, rows: int) -> WindowKV:
    kv = engine.backend.new_kv(rows)
    kv.end = rows
    return kv


def _kl(truth: Tensor, found: Tensor) -> float:
    return float(divergence(truth, found).mean())


def table(state: dict[str, Any]) -> list[list[str]]:
    """Rows of the documentation's table: share, then KL and η by arm."""
    arms = state["arms"]
    lines = []
    for share in SHARES[:-1]:
        cells = [arms[f"{name} {share:g}"] for name in ("attended", "random", "first")]
        figures = (
            f"{c['kl'][0]:.4f}, η {c['eta'][0]:.2f} [{c['eta'][1]:.2f}, {c['eta'][2]:.2f}]" for c in cells
        )
        lines.append([f"{share:.1%}", *figures])
    return lines


if __name__ == "__main__":
    main()
