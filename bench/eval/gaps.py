"""What leaves a hole may stay where it was: survivors that keep their position ids, and such that move up.
move up.

    python -m bench.eval.gaps --windows 24 --threads 1

Windows of five 128-token READMEs; the second leaves. `rotate` closes the gap in positions, `gap` leaves it
and copies the rows, `blind` puts canonicals in their places. KL(re-prefill ‖ arm) over a question's tokens.
Why there is no op that keeps gaps: it saves the difference between a copy and a rotation, which is timed
here as well.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentkv import Engine
from agentkv.audit import divergence
from agentkv.cache import Overlay, Run, WindowKV
from agentkv.calibrate import hardware
from agentkv.config import EngineConfig
from agentkv.diagnose import documents
from agentkv.kv import KVBlock
from agentkv.metrics import interval
from agentkv.models import embedded, hf
from bench.eval.policies import QUESTIONS
from bench.timing import alternate, ratio

LENGTH, SIZE, LEAVES = 128, 5, 1
ROUNDS = 15


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--windows", type=int, default=24)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("bench/results/gaps_smollm2.json"))
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(args.threads)
    engine = Engine(hf.load(embedded.ensure()), EngineConfig())
    pool = [documents.Document(name, tuple(_ids(engine, text))) for name, text in documents.readmes()]
    pool = [document for document in pool if len(document.ids) >= LENGTH]
    chosen = documents.windows(pool, args.windows, SIZE, LENGTH, seed=5)
    rows = [_window(engine, [p.ids for p in pieces], i) for i, pieces in enumerate(chosen)]
    kl = {name: interval([row[name] for row in rows]) for name in rows[0]}
    state = {"model": engine.loaded.name, "hardware": hardware(), "threads": args.threads, "n": len(rows)}
    args.out.write_text(json.dumps(state | {"kl": kl} | _times(engine), indent=1) + "\n")
    print(json.dumps(kl))


def _ids(engine: Engine, text: str) -> list[int]:
    return engine.tokenizer(text, add_special_tokens=False)["input_ids"]


def _window(engine: Engine, chunks: Sequence[Sequence[int]], number: int) -> dict[str, float]:
    backend, head = engine.backend, _ids(engine, "<|im_start|>user\n")
    question = np.asarray(_ids(engine, f"\n\n{QUESTIONS[number % len(QUESTIONS)]}<|im_end|>\n"))
    parts = [np.asarray(part) for part in (head, *chunks)]
    left = [part for i, part in enumerate(parts) if i != LEAVES + 1]
    whole, short = _filled(engine, parts), _filled(engine, left)
    truth = _asked(engine, short, question, short.end)
    front = sum(len(part) for part in parts[: LEAVES + 1])
    kept = whole.view(0, front).clone()
    behind = whole.view(front + LENGTH, whole.end).clone()
    canonicals = [backend.canonical(part) for part in left[LEAVES + 1 :]]
    arms = {
        "rotate": _joined(engine, [kept, behind], short.end, front),
        "gap": _joined(engine, [kept, behind], short.end, front + LENGTH),
        "blind": _joined(engine, [kept, *canonicals], short.end, front),
    }
    found: dict[str, float] = {}
    for name, kv in arms.items():
        position = int(kv.positions[kv.end - 1]) + 1
        found[name] = float(divergence(truth, _asked(engine, kv, question, position)).mean())
    again = _asked(
        engine, _joined(engine, [short.view(0, short.end).clone()], short.end, 0), question, short.end
    )
    if float(divergence(truth, again).max()) > 1e-6:
        raise AssertionError("rows that were put back answer differently")
    return found


def _filled(engine: Engine, parts: Sequence[np.ndarray]) -> WindowKV:
    ids = np.concatenate(parts)
    kv = engine.backend.new_kv(len(ids))
    kv.end = len(ids)
    engine.backend.prefill(kv, [Run(0, ids)], keep=0)
    return kv


def _joined(engine: Engine, blocks: Sequence[KVBlock], rows: int, position: int) -> WindowKV:
    """The first block as it is, the others behind it from ``position`` on."""
    kv, row = engine.backend.new_kv(rows), 0
    for block in blocks:
        place = position + row - blocks[0].tokens if row else 0
        engine.backend.place(kv, row, block, position=place)
        row += block.tokens
    kv.end = row
    return kv


def _asked(engine: Engine, kv: WindowKV, question: np.ndarray, position: int) -> Tensor:
    run = Run(kv.end, question, position)
    return engine.runner.run([run], Overlay(kv, kv.end), keep=len(question))


def _times(engine: Engine) -> dict[str, Any]:
    """A rotation of the survivors, and a copy of them, in turn."""
    backend, kv = engine.backend, engine.backend.new_kv(4096)
    for slot in kv.slots:
        slot.normal_()
    block = backend.read(kv, 0, 512)
    laps = alternate(
        {
            "rotate": partial(backend.place, kv, 1024, block),
            "copy": partial(backend.place, kv, 1024, block, position=0),
        },
        ROUNDS,
    )
    return {
        "tokens": 512,
        "rotate_over_copy": round(ratio(laps["rotate"], laps["copy"]), 3),
        "ms": {name: round(float(np.median(ms)), 3) for name, ms in laps.items()},
    }


if __name__ == "__main__":
    main()
