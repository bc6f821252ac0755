"""Whole lives of windows under each policy, beside a prefix cache, blind reuse and re-prefill.

    python -m bench.eval.policies --windows 30 --threads 1

A window holds a system message with a clock and at least six documents (READMEs of installed distributions);
it is filled, then edited ten times and asked after every edit. Every arm plays the same script over the same
tokens. KL(re-prefill ‖ arm) is the mean over the question's tokens; time is from the edit call to the logits
of the question, planning included; filling the window costs all arms the same and is not counted. Every
finished window is written, so that a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentkv.audit import divergence
from agentkv.calibrate import hardware
from agentkv.diagnose import documents
from agentkv.models import embedded, hf
from bench.eval import policy_arms

DOCUMENTS, EDITS = 16, 10
LEAST, MOST = 6, 9
"""Documents in a window while it is edited."""
LENGTHS = (64, 96, 160)
HEADER = ("", "time", "mean KL", "worst", "turns within the budget")
SAME = 1e-4
"""KL up to which exact is what it says: fp32, another order of the same sums."""
QUESTIONS = (
    "What is the last of these packages for?",
    "Which of these packages would you use, and why?",
    "How do you install the package described above?",
    "Name one feature that the text above mentions.",
)


@dataclass(frozen=True)
class Step:
    """One edit. what: evict, append, recall, move or clock. which: a document's number. before: the document
    it comes to stand in front of; None for the end."""

    what: str
    which: int = 0
    before: int | None = None


def script(draw: random.Random) -> tuple[list[int], list[Step]]:
    """Documents that the window is filled with, and what happens to it; no step leaves it shorter than
    LEAST."""
    live, gone = list(range(draw.randint(LEAST + 1, MOST))), list[int]()
    first, fresh, steps = list(live), len(live), list[Step]()
    while len(steps) < EDITS:
        what = draw.choice(
            ("slide", "slide", "hole", "append", "insert", "recall", "recall", "move", "clock")
        )
        if what == "clock":
            steps.append(Step("clock", len(steps)))
        elif what in ("slide", "hole") and len(live) > LEAST:
            which = live[0] if what == "slide" else draw.choice(live[1:-1])
            live.remove(which)
            gone.append(which)
            steps.append(Step("evict", which))
        elif what == "move":
            which = draw.choice(live)
            live.remove(which)
            steps.append(_put(draw, "move", which, live))
        elif what in ("append", "insert") and len(live) < MOST and fresh < DOCUMENTS:
            steps.append(_put(draw, "append", fresh, live, end=what == "append"))
            fresh += 1
        elif what == "recall" and gone and len(live) < MOST:
            which = gone.pop(draw.randrange(len(gone)))
            steps.append(_put(draw, "recall", which, live))
    return first, steps


def _put(draw: random.Random, what: str, which: int, live: list[int], end: bool | None = None) -> Step:
    """Note where a document goes: the end, or a random place (half of the time, where `end` is not given)."""
    end = draw.random() < 0.5 if end is None else end
    at = len(live) if end else draw.randrange(len(live))
    before = None if at == len(live) else live[at]
    live.insert(at, which)
    return Step(what, which, before)


def main() -> None:
    """Parse arguments, then play every window."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--windows", type=int, default=30)
    parser.add_argument("--first", type=int, default=0, help="seed of the first window")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("bench/results/policies_smollm2.json"))
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(args.threads)
    loaded = hf.load(embedded.ensure())
    texts = dict(documents.readmes())
    head = {"model": loaded.name, "hardware": hardware(), "threads": args.threads, "documents": len(texts)}
    state = resume(args.out, head)
    for seed in range(args.first + len(state["windows"]), args.first + args.windows):
        state["windows"].append(play(loaded, texts, seed))
        args.out.write_text(json.dumps(state, indent=1) + "\n")
        print(seed, summary(state["windows"]), flush=True)


def resume(path: Path, head: dict[str, Any]) -> dict[str, Any]:
    """What the file holds, if it is of the same run."""
    if path.exists():
        state = json.loads(path.read_text())
        if state["head"] != head:
            raise SystemExit(f"{path} is of another run: {state['head']}, not {head}; move it away")
        return state
    return {"head": head, "windows": []}


def play(loaded: hf.LoadedModel, texts: dict[str, str], seed: int) -> list[dict[str, Any]]:
    """One row per edit: by arm the KL and the milliseconds, and what balanced predicted."""
    draw = random.Random(seed)
    names = draw.sample(sorted(texts), DOCUMENTS)
    tokens = [draw.choice(LENGTHS) for _ in names]
    shown = [_cut(loaded.tokenizer, texts[name], count) for name, count in zip(names, tokens, strict=True)]
    first, steps = script(draw)
    arms = policy_arms.build(loaded, shown, first)
    rows = []
    for number, step in enumerate(steps):
        # Numbered, or the store would know the KV of a question that was asked before.
        question = f"Question {number + 1}: {QUESTIONS[(seed + number) % len(QUESTIONS)]}"
        rows.append(_turn(arms, step, question, number))
    return rows


def _cut(tokenizer: Any, text: str, tokens: int) -> str:
    return tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"][:tokens])


def _turn(arms: Sequence[policy_arms.Arm], step: Step, question: str, number: int) -> dict[str, Any]:
    """All arms, in an order that changes from turn to turn, on the same tokens."""
    found: dict[str, tuple[Tensor, float]] = {}
    order = [*arms[number % len(arms) :], *arms[: number % len(arms)]]
    order.sort(key=lambda arm: isinstance(arm, policy_arms.Follower))  # these repeat what a window shows
    for arm in order:
        start = time.perf_counter()
        logits = arm.turn(step, question)
        found[arm.name] = logits, (time.perf_counter() - start) * 1e3
    tokens = {arm.name: tuple(arm.ids()) for arm in arms}
    if len(set(tokens.values())) != 1:
        raise AssertionError(f"the arms stand on different tokens after {step}: {tokens}")
    truth = found[policy_arms.TRUTH][0]
    kl = {name: float(divergence(truth, logits).mean()) for name, (logits, _) in found.items()}
    if max(kl["exact"], kl["prefix"]) > SAME:
        raise AssertionError(f"exact is off by {kl['exact']}, the prefix cache by {kl['prefix']}")
    predicted = {arm.name: arm.predicted for arm in arms if isinstance(arm, policy_arms.Ours)}
    row = {"step": step.what, "end": step.before is None, "tokens": len(tokens["exact"]), "kl": kl}
    return row | {"ms": {name: ms for name, (_, ms) in found.items()}, "predicted": predicted}


def summary(windows: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """By arm: share of turns within the budget, mean KL, and time as a share of re-prefill's."""
    rows = list(itertools.chain(*windows))
    total = sum(row["ms"][policy_arms.TRUTH] for row in rows)
    return {
        name: {
            "within": round(sum(row["kl"][name] <= policy_arms.BUDGET for row in rows) / len(rows), 4),
            "kl": round(sum(row["kl"][name] for row in rows) / len(rows), 5),
            "worst": round(max(row["kl"][name] for row in rows), 4),
            "time": round(sum(row["ms"][name] for row in rows) / total, 4),
        }
        for name in rows[0]["kl"]
    }


def table(state: dict[str, Any]) -> Iterator[list[str]]:
    """Rows of the documentation's table."""
    for name, figures in summary(state["windows"]).items():
        yield [
            policy_arms.TITLES[name],
            f"{figures['time']:.0%}",
            f"{figures['kl']:.4f}",
            f"{figures['worst']:.3f}",
            f"{figures['within']:.1%}",
        ]


if __name__ == "__main__":
    main()
