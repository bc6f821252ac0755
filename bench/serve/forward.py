"""The model's own work over a window: a question's forward, decoding, prefilling one chunk and forming its
patch."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import torch

from agentkv import Engine
from agentkv.audit import divergence
from agentkv.cache import Run
from agentkv.calibrate import hardware
from bench.serve.windows import Case, build, stock_cache
from bench.timing import alternate, ratio

DECODED = 48


def _row(
    op: str, size: int, threads: int, ours: list[float], other: list[float], correct: bool
) -> dict[str, Any]:
    return {
        "op": op,
        "window": size,
        "threads": threads,
        "ms": round(statistics.median(ours), 2),
        "other_ms": round(statistics.median(other), 2),
        "ratio_of_times": round(1 / ratio(other, ours), 3),
        "correct": correct,
        "hardware": hardware(),
    }


def question(engine: Engine, case: Case, size: int, rounds: int, threads: int) -> dict[str, Any]:
    """24 tokens over the window, ours against transformers' own forward over a DynamicCache of the same
    tokens."""
    model, kv = engine.loaded.model, case.window.kv
    cache = stock_cache(model, case.window.ids())
    asked = torch.as_tensor(case.question)
    row = kv.end
    kv.grow(row + len(asked))

    def ours() -> torch.Tensor:
        return engine.backend.prefill(kv, [Run(row, case.question)], keep=1)

    def stock() -> torch.Tensor:
        positions = torch.arange(size, size + len(asked))[None]
        with torch.inference_mode():
            logits = model(
                asked[None], position_ids=positions, cache=cache, use_cache=True, logits_to_keep=1
            ).logits[0]
        cache.crop(-len(asked))
        return logits

    correct = bool((ours() - stock()).abs().max() < 1e-3)
    laps = alternate({"ours": ours, "stock": stock}, rounds)
    return _row("question_forward_vs_transformers", size, threads, laps["ours"], laps["stock"], correct)


def decode(engine: Engine, case: Case, size: int, rounds: int, threads: int) -> dict[str, Any]:
    """Greedy decoding of 48 tokens behind the window, against transformers' generate over a DynamicCache.

    Both arms are timed with 49 and with 1 new token, and the difference counts: prefill drops out.
    """
    model = engine.loaded.model
    base = case.window.ids()
    cache = stock_cache(model, base[:-1])
    ids = torch.as_tensor(base)[None]

    def stock(count: int) -> list[int]:
        out = model.generate(
            ids, cache=cache, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0
        )
        cache.crop(-(cache.get_seq_length() - (size - 1)))
        return out[0, size:].tolist()

    def ours(count: int) -> list[int]:
        kv, live, said = case.window.kv, case.window.kv.live(), []
        kv.grow(size + count)
        logits = engine.backend.prefill(kv, [Run(kv.end - 1, base[-1:])], keep=1)
        for step in range(count):
            said.append(int(logits.argmax()))
            if step + 1 < count:
                run = Run(kv.end + step, torch.tensor([said[-1]]))
                logits = engine.runner.run([run], live, keep=1)
        return said

    same = stock(DECODED + 1) == ours(DECODED + 1)
    arms = {
        "ours": lambda: ours(DECODED + 1),
        "stock": lambda: stock(DECODED + 1),
        "ours_1": lambda: ours(1),
        "stock_1": lambda: stock(1),
    }
    laps = alternate(arms, rounds)
    mine = [a - b for a, b in zip(laps["ours"], laps["ours_1"], strict=True)]
    theirs = [a - b for a, b in zip(laps["stock"], laps["stock_1"], strict=True)]
    row = _row("decode_vs_transformers_generate", size, threads, mine, theirs, same)
    return {
        **row,
        "tokens_per_s": round(DECODED * 1e3 / row["ms"], 2),
        "other_tokens_per_s": round(DECODED * 1e3 / row["other_ms"], 2),
    }


def fresh_patch(engine: Engine, case: Case, size: int, rounds: int, threads: int) -> dict[str, Any]:
    """Recall at the tail: conditioned forward of one chunk and forming its patch, against the forward
    alone."""
    kv, backend = case.window.kv, engine.backend
    ids = np.concatenate(
        [engine.chunks.ids(chunk.id) for _, chunk in case.window.content.get(case.spare.id).parts]
    )
    row = kv.end
    kv.grow(row + len(ids))
    canonical = backend.canonical(ids)

    def prefill() -> None:
        backend.prefill(kv, [Run(row, ids)], keep=0)

    def recall() -> Any:
        prefill()
        return backend.form(backend.read(kv, row, row + len(ids)), canonical)

    patch = recall()
    truth = kv.view(row, row + len(ids)).clone()
    aside = backend.new_kv(row + len(ids))
    aside.start, aside.end = kv.start, row + len(ids)
    for slot, live in zip(aside.slots, kv.slots, strict=True):
        slot[:, :row] = live[:, :row]
    backend.place(aside, row, canonical, patch)
    logits = [engine.backend.prefill(aside, [Run(row + len(ids) - 1, ids[-1:])], keep=1)]
    backend.place(aside, row, truth)
    logits.append(engine.backend.prefill(aside, [Run(row + len(ids) - 1, ids[-1:])], keep=1))
    correct = bool(divergence(logits[1], logits[0])[0] < 0.05) and patch.energy > 0.5
    laps = alternate({"recall": recall, "prefill": prefill}, rounds)
    row_ = _row(
        "recall_fresh_patch_vs_prefill_of_the_chunk", size, threads, laps["recall"], laps["prefill"], correct
    )
    return {**row_, "chunk_tokens": len(ids)}


def measure(engine: Engine, size: int, rounds: int, threads: int) -> list[dict[str, Any]]:
    """The rows of one window length."""
    case = build(engine, size)
    parts = (question, decode, fresh_patch)
    return [part(engine, case, size, rounds, threads) for part in parts]
