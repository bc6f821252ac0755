"""How far an edited window is from a re-prefill, on real documents.

    python -m bench.eval.quality --windows 24 --threads 1

Windows of five 256-token chunks (READMEs of installed distributions) behind a chat system prefix, one
question each. KL(re-prefill ‖ arm) over the question's tokens and over the re-prefill's greedy answer,
η against the first arm of each operation, greedy tokens equal until the first divergence. Gates run first.
Every finished window is written, so that a run that was stopped goes on where it was.
"""

import argparse
import hashlib
import itertools
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from agentkv.audit import divergence
from agentkv.diagnose import documents
from agentkv.metrics import agreement
from agentkv.models import embedded, hf
from agentkv.patches import deficit
from agentkv.patches.basis import BasisPool, SharedBasis
from bench.eval import gates, operations
from bench.eval.reference import Reference

LENGTH, SIZE, ANSWER = 256, 5, 16
BATCH = 5
"""Arms per forward: five windows of KV at a time fit where the model fits."""
TRAIN = 4
"""Windows, from another seed, that the shared basis is pooled over: TRAIN * (SIZE - 1) deficits."""
PREFIX = (
    "<|im_start|>system\nYou are a careful assistant. You read the documentation of software packages and "
    "answer questions about it in one short sentence.<|im_end|>\n<|im_start|>user\n"
)
GENERIC = "<|im_start|>system\nYou are a helpful AI assistant. Answer what you are asked, and keep to facts."
QUESTIONS = (
    "What is the last of these packages for?",
    "Which of these packages would you use, and why?",
    "How do you install the package described above?",
    "Name one feature that the text above mentions.",
)
ASK = "\n\n{}<|im_end|>\n<|im_start|>assistant\n"


def main() -> None:
    """Parse arguments, run the gates, then every window."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--windows", type=int, default=24)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("bench/results/quality_smollm2.json"))
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(args.threads)
    loaded = hf.load(embedded.ensure())
    reference, tokenizer = Reference(loaded.model), loaded.tokenizer

    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    pool = heads(encode)
    chosen = documents.windows(pool, args.windows, SIZE, LENGTH, seed=0)
    head = describe(loaded, args.threads, len(pool), digest(chosen))
    state = resume(args.out, head)
    prefix = encode(PREFIX)
    a, b = chosen[0][:2]
    state["gates"] = gates.check(reference, prefix, a.ids, b.ids, encode(ASK.format(QUESTIONS[0])))
    print("gates passed:", state["gates"], flush=True)
    basis = train(reference, prefix, documents.windows(pool, TRAIN, SIZE, LENGTH, seed=1))
    sinks = {
        "16 tokens of another prompt": encode(GENERIC)[:16],
        "the first 16 tokens of the prefix": prefix[:16],
        "one token": prefix[:1],
    }
    for index in range(len(state["windows"]), args.windows):
        began = time.perf_counter()
        docs = operations.Documents(reference, prefix, [c.ids for c in chosen[index]])
        ask = encode(ASK.format(QUESTIONS[index % len(QUESTIONS)]))
        state["windows"].append(evaluate(docs, ask, sinks, basis, index))
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(state, indent=1) + "\n")
        print(f"window {index + 1} of {args.windows}: {time.perf_counter() - began:.0f} s", flush=True)


def heads(encode: Callable[[str], list[int]]) -> list[documents.Document]:
    """The first LENGTH tokens of every README that has so many."""
    long = documents.tokenised(encode, documents.readmes(), LENGTH)
    return [documents.Document(d.name, d.ids[:LENGTH]) for d in long]


def digest(chosen: Sequence[Sequence[documents.Piece]]) -> str:
    """16 hex digits over names and tokens."""
    text = repr([[(c.name, c.ids) for c in window] for window in chosen])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def describe(loaded: Any, threads: int, pool: int, digest: str) -> dict[str, Any]:
    """What a reader needs to repeat the run; a run only goes on from a file with the same head."""
    return {
        "model": loaded.name,
        "fingerprint": loaded.fingerprint,
        "dtype": str(loaded.dtype),
        "documents": {"pool": pool, "digest": digest, "chunk_tokens": LENGTH, "chunks_per_window": SIZE},
        "answer_tokens": ANSWER,
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores, {threads} torch threads",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


def resume(path: Path, head: dict[str, Any]) -> dict[str, Any]:
    """The state in `path` if the same run wrote it, else a fresh one."""
    if path.exists():
        state = json.loads(path.read_text())
        if all(state.get(key) == value for key, value in head.items()):
            return state
    return {**head, "windows": []}


def train(
    reference: Reference, prefix: Sequence[int], chosen: Sequence[Sequence[documents.Piece]]
) -> SharedBasis:
    """A basis of rank 32 pooled over windows that are not measured."""
    pool = BasisPool()
    for window in chosen:
        docs = operations.Documents(reference, prefix, [c.ids for c in window])
        for target, canonical in zip(docs.full[2:], docs.canonical[1:], strict=True):
            pool.add(deficit(target.slots, docs.at(canonical, target).slots))
    return pool.basis(32)


def evaluate(
    docs: operations.Documents,
    ask: Sequence[int],
    sinks: dict[str, list[int]],
    basis: SharedBasis,
    index: int,
) -> dict[str, Any]:
    """operation -> arm -> {kl, kl_answer, agree}; `size` says how many chunks the recall saw."""
    size = 2 + index % (SIZE - 1)
    result: dict[str, Any] = {"size": size}
    for case in cases(docs, size, sinks, basis, index):
        result[case.operation] = score(docs.reference, case, ask)
    return result


def cases(
    docs: operations.Documents, size: int, sinks: dict[str, list[int]], basis: SharedBasis, index: int
) -> Iterator[operations.Case]:
    """All edits of one window, one at a time: each holds several windows of KV."""
    orders = list(itertools.permutations(range(3)))[1:]
    yield operations.recall(docs, size, sinks, basis, seed=index)
    yield operations.leave(docs, "slide, 1 of 5 leaves", [0])
    yield operations.leave(docs, "slide, 2 of 5 leave", [0, 1])
    yield operations.leave(docs, "hole, the third of 5 leaves", [2])
    yield from operations.reorder(docs, orders[index % len(orders)])
    yield operations.reinsert(docs)


def score(reference: Reference, case: operations.Case, ask: Sequence[int]) -> dict[str, dict[str, float]]:
    """KL and agreement of every arm of one case."""
    answer = reference.greedy(case.truth, ask, ANSWER)
    ids = [*ask, *answer[:-1]]
    truth = reference.logits(case.truth, ids)
    every, rows = list(case.arms), {}
    for names in (every[i : i + BATCH] for i in range(0, len(every), BATCH)):
        answers = reference.ask([case.arms[name]() for name in names], ids)
        for name, arm in zip(names, answers, strict=True):
            each = divergence(truth, arm)
            rows[name] = {
                "kl": float(each[: len(ask)].mean()),
                "kl_answer": float(each[len(ask) - 1 :].mean()),
                "agree": agreement(truth[-ANSWER:], arm[-ANSWER:]),
            }
    return rows


if __name__ == "__main__":
    main()
