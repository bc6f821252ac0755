"""Windows of real documents behind a system message, with a question about one of them, over one engine."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from agentkv import Engine, Handle, Window
from agentkv.audit import divergence
from agentkv.cache import Overlay, Run
from agentkv.diagnose import documents
from agentkv.inputs import Ids, marker_ids

LENGTH, SIZE, ANSWER = 64, 4, 8
"""Tokens of a document, documents of a window, tokens of the greedy answer that KL is taken over."""
SYSTEM = (
    "You are a careful assistant. You read the documentation of software packages and answer questions "
    "about it in one short sentence."
)
QUESTIONS = ("What is the package {name} for?", "What is the last of these packages for?")


@dataclass
class Case:
    """One window, committed, and what a re-prefill says behind it."""

    window: Window
    documents: list[Handle]
    question: Handle
    about: int
    """Index of the document that is asked about."""
    tail: Ids
    """int64 [T]: the question, the head of the answer, and the answer but for its last token."""
    truth: Tensor
    """[ANSWER, vocab]: what a re-prefill says at every token of its greedy answer."""

    def without(self, gone: int) -> Tensor:
        """The same of a re-prefill that never saw the document ``gone``."""
        parts = [self.window.engine.chunks.ids(c.id) for e in self._shown(gone) for _, c in e.parts]
        ids = np.concatenate([*parts, self.tail])
        return reprefilled(self.window.engine, ids)

    def _shown(self, gone: int) -> list[Any]:
        hidden = {self.documents[gone].id, self.question.id}
        return [e for e in self.window.content.live() if e.handle.id not in hidden]

    def answered(self, window: Window) -> float:
        """KL(re-prefill ‖ window) over the answer; ``window`` holds the question at its end."""
        placed = window.graph.get(window.content.live()[-1].parts[0][0])
        assert placed is not None
        run = Run(placed.row, self.tail, placed.position)
        found = window.engine.runner.run([run], Overlay(window.kv, placed.row), keep=ANSWER)
        return float(divergence(self.truth, found).mean())


def reprefilled(engine: Engine, ids: Ids) -> Tensor:
    """[ANSWER, vocab] of the last tokens of ``ids``, from nothing."""
    kv = engine.backend.new_kv(len(ids))
    kv.end = len(ids)
    return engine.runner.run([Run(0, ids)], kv.live(), keep=ANSWER)


def chosen(engine: Engine, count: int) -> list[list[documents.Piece]]:
    """Pieces of ``count`` windows: heads of the READMEs that are installed here."""

    def encode(text: str) -> list[int]:
        found: list[int] = engine.tokenizer(text, add_special_tokens=False)["input_ids"]
        return found

    long = documents.tokenised(encode, documents.readmes(), LENGTH)
    heads = [documents.Document(d.name, d.ids[:LENGTH]) for d in long]
    return documents.windows(heads, count, SIZE, LENGTH, seed=0)


def opened(engine: Engine, pieces: Sequence[documents.Piece], index: int) -> Case:
    """The window of these pieces. Which document is asked about goes round with ``index``."""
    window = engine.window("balanced")
    window.append(SYSTEM, kind="system", pin=True)
    handles = [
        window.append_ids(np.asarray(p.ids, dtype=np.int64), kind="document", preview=p.name) for p in pieces
    ]
    about = SIZE - 1 if index % len(QUESTIONS) else index // len(QUESTIONS) % SIZE
    question = window.append(QUESTIONS[index % len(QUESTIONS)].format(name=pieces[about].name), kind="user")
    window.commit()
    head = marker_ids(engine.tokenizer, engine.template.marks("assistant").head)
    tail = np.concatenate([window.ids()[len(window.ids()) - question.tokens :], head])
    tail = np.concatenate([tail, _greedy(window, tail)[:-1]])
    front = window.ids()[: len(window.ids()) - question.tokens]
    return Case(window, handles, question, about, tail, reprefilled(engine, np.concatenate([front, tail])))


def _greedy(window: Window, tail: Ids) -> Ids:
    """ANSWER greedy tokens behind the question."""
    row = window.kv.end - sum(
        c.length for _, c in window.content.live()[-1].parts
    )  # the question is a part of the tail
    cache, run, said = Overlay(window.kv, row), Run(row, tail), list[int]()
    for _ in range(ANSWER):
        logits = window.engine.runner.run([run], cache, keep=1)
        said.append(int(logits[-1].argmax()))
        run = Run(run.stop, said[-1:])
    return np.asarray(said, dtype=np.int64)


def describe(engine: Engine, windows: int, threads: int) -> dict[str, Any]:
    """What a reader needs to repeat the run; a run only goes on from a file with the same head."""
    return {
        "model": engine.loaded.name,
        "dtype": str(engine.loaded.dtype),
        "windows_asked_for": windows,
        "chunk_tokens": LENGTH,
        "chunks_per_window": SIZE,
        "answer_tokens": ANSWER,
        "hardware": f"{platform.machine()}, {threads} torch threads",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


def resume(path: Path, head: dict[str, Any]) -> dict[str, Any]:
    """The state in ``path`` if the same run wrote it, else a fresh one."""
    if path.exists():
        state: dict[str, Any] = json.loads(path.read_text())
        if all(state.get(key) == value for key, value in head.items()):
            return state
    return {**head, "windows": []}


def gate(case: Case) -> None:
    """The window is what a re-prefill gives before anything is measured against it."""
    off = case.answered(case.window)
    if off > 1e-6:
        raise SystemExit(f"a freshly computed window is {off:.2g} nats from its re-prefill; nothing measured")


def run(measured: Callable[[Case], dict[str, Any]], description: str, out: Path) -> None:
    """Parse the command line, then measure every window; each one that is finished is written."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--windows", type=int, default=24)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=out)
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(args.threads)
    with Engine.from_pretrained() as engine:
        state = resume(args.out, describe(engine, args.windows, args.threads))
        pieces = chosen(engine, args.windows)
        for index in range(len(state["windows"]), args.windows):
            began = time.perf_counter()
            with Engine.from_model(engine.loaded.model, engine.tokenizer) as fresh:  # a store of its own
                state["windows"].append(measured(opened(fresh, pieces[index], index)))
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(state, indent=1) + "\n")
            print(f"window {index + 1} of {args.windows}: {time.perf_counter() - began:.0f} s", flush=True)
