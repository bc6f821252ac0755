"""Retrieved documents in several orders through the embedded model: forming and prefill time, and KL.

    python -m bench.eval.placement --turns 24 --threads 1

The documents are heads of READMEs; which of them a turn finds, and in which order, comes from the generated
loops `rerank` and `retrieval`. All arms play every turn in the same run, in turn; each has an engine of its
own. The question is asked in a fork, so that it leaves nothing behind. Time is the processor's, of the commit
(moves, loads and prefill, planning included) and of settling (forming canonicals and patches). Every finished
turn is written.
"""

import argparse
import json
import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from agentkv_orchestrator.policy import Policy
from agentkv_orchestrator.trace import Trace
from agentkv_orchestrator.traces import generate

from agentkv import Engine, Handle
from agentkv.calibrate import hardware
from agentkv.config import EngineConfig
from agentkv.diagnose import documents
from agentkv.models import embedded, hf
from bench.eval.gates import LOGITS, GateError
from bench.eval.quality import QUESTIONS

RESULT = Path("bench/results/placement.json")
LOOPS = ("rerank", "retrieval")
Order = Callable[[Sequence[str], random.Random], list[str]]
"""From the order a retriever gave to the order an arm asks for."""

ARMS: dict[str, Order | None] = {
    "arrival": lambda found, draw: list(found),
    "shuffled": lambda found, draw: draw.sample(list(found), len(found)),
    "sorted by id": lambda found, draw: sorted(found),
    "placed": None,
}
"""None: the planner's."""


class Arm:
    """One window on an engine of its own."""

    def __init__(self, name: str, loaded: Any, texts: dict[str, str], policy: Policy, seed: int) -> None:
        self.name, self._order, self._texts = name, ARMS[name], texts
        self._draw = random.Random(seed)
        self.engine = Engine(loaded, EngineConfig())
        self.window = self.engine.window(policy)
        self.window.append("You answer questions about software packages.", kind="system", pin=True)
        self._handles: dict[str, Handle] = {}

    def turn(self, found: Sequence[str]) -> dict[str, float]:
        """Show these documents, then settle; milliseconds of the processor and predicted KL."""
        window, live = self.window, {e.handle.id for e in self.window.content.live()}
        for name, handle in self._handles.items():
            if name not in found and handle.id in live:
                window.evict(handle)
        for name in found:
            handle = self._handles.get(name)
            if handle is None:
                free = self._order is None
                self._handles[name] = window.append(self._texts[name], kind="document", order_free=free)
            elif handle.id not in live:
                window.recall(handle)
        if self._order is not None:
            window.reorder([self._handles[name] for name in self._order(found, self._draw)])
        since = time.process_time()
        plan = window.commit()
        committed = time.process_time()
        window.settle()
        settled = time.process_time()
        return {
            "commit_ms": (committed - since) * 1e3,
            "settle_ms": (settled - committed) * 1e3,
            "predicted_ms": plan.predicted_ms,
            "predicted_kl": plan.predicted_kl,
            "computed": plan.tokens()["recomputed"],
        }

    def kl(self, question: str) -> float:
        """KL(re-prefill ‖ window) over a question that is asked aside."""
        with self.window.fork() as twin:
            twin.append(question, kind="user")
            return twin.audit(new_tokens=1, attribute=False).kl

    def shows(self, found: Sequence[str]) -> bool:
        """Whether the window holds these documents and nothing else."""
        wanted = {self._handles[name].id for name in found}
        return {e.handle.id for e in self.window.content.live()[1:]} == wanted


def play(trace: Trace, arms: Sequence[Arm], every: int, told: Callable[[list[dict[str, Any]]], None]) -> None:
    """Every turn through all arms, starting with another one each time. every: turns between two audits."""
    rows: list[dict[str, Any]] = []
    for number, turn in enumerate(trace.turns):
        found = [m.id for m in turn.messages if m.order_free]
        start = number % len(arms)
        for arm in (*arms[start:], *arms[:start]):
            row: dict[str, Any] = {"arm": arm.name, "turn": number, **arm.turn(found)}
            if not arm.shows(found):
                raise GateError(f"turn {number}: {arm.name} does not show {found}")
            if number % every == 0:
                row["kl"] = arm.kl(QUESTIONS[number % len(QUESTIONS)])
            if number == 0 and row["kl"] > LOGITS:
                raise GateError(f"{arm.name}: a fresh window is off by {row['kl']}: nothing below it counts")
            rows.append(row)
        told(rows)


def texts(trace: Trace, tokenizer: Any, length: int) -> dict[str, str]:
    """The head of a README for every document of the trace; length: in tokens."""
    names = sorted({m.id for turn in trace.turns for m in turn.messages if m.order_free})

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    long = documents.tokenised(encode, documents.readmes(), length)
    if len(long) < len(names):
        raise SystemExit(f"{len(long)} READMEs of {length} tokens; the loop shows {len(names)} documents")
    return {name: tokenizer.decode(d.ids[:length]) for name, d in zip(names, long, strict=False)}


def main() -> None:
    """Parse arguments and play every loop."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=24)
    parser.add_argument("--every", type=int, default=4, help="turns between two audits")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=Policy().kl_budget, help="KL budget, in nats")
    parser.add_argument("--tokens", type=int, default=256, help="of a document")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--loops", nargs="+", choices=LOOPS, default=LOOPS)
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(args.threads)
    loaded = hf.load(embedded.ensure())
    state: dict[str, Any] = {
        "model": loaded.name,
        "hardware": hardware(),
        "threads": args.threads,
        "document_tokens": args.tokens,
        "kl_budget": args.budget,
        "seed": args.seed,
        "loops": {},
    }
    for loop in args.loops:
        trace = generate(loop, args.turns, args.seed)
        shown = texts(trace, loaded.tokenizer, args.tokens)
        policy = Policy(kl_budget=args.budget)
        arms = [Arm(name, loaded, shown, policy, args.seed) for name in ARMS]

        def told(rows: list[dict[str, Any]], loop: str = loop) -> None:
            state["loops"][loop] = rows
            args.out.write_text(json.dumps(state, indent=1) + "\n")
            print(f"{loop}: {len(rows)} rows", flush=True)

        play(trace, arms, args.every, told)
        for arm in arms:
            arm.engine.close()


if __name__ == "__main__":
    main()
