"""A task that breaks when a chunk is reused blindly: only the model binds its two chunks to each other.

    python -m bench.eval.binding --items 100 --threads 1

Chunk A says who has which profession, chunk B what each profession bought, both between noise
sentences. "What did Grace buy?" needs B's "the pilot" to have met A's "The pilot is Grace": B prefilled
alone has never seen a name. The answer's colour is ranked among the four in B (chance .25).

The regime (prompt form, amount of noise) was chosen on seed 1000; items come from seed 0. Gates run
first, every finished item is written, and a run that was stopped goes on where it was.
"""

import argparse
import itertools
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from agentkv.audit import divergence
from agentkv.calibrate import hardware
from agentkv.kv import KVBlock
from agentkv.models import hf
from agentkv.patches import Budget, apply, deficit, form
from bench.eval import gates
from bench.eval.reference import Reference, join, split
from bench.models import qwen_coder

NAMES = [
    "Grace",
    "Peter",
    "Alice",
    "Frank",
    "Helen",
    "Oscar",
    "Maria",
    "David",
    "Laura",
    "Simon",
    "Emma",
    "Jack",
]
ROLES = [
    "pilot",
    "baker",
    "doctor",
    "farmer",
    "lawyer",
    "singer",
    "teacher",
    "driver",
    "nurse",
    "painter",
    "judge",
    "chef",
]
COLOURS = [
    "green",
    "red",
    "blue",
    "yellow",
    "black",
    "white",
    "pink",
    "purple",
    "orange",
    "brown",
    "gray",
    "silver",
]
OBJECTS = [
    "drum",
    "lamp",
    "chair",
    "clock",
    "bike",
    "kite",
    "sofa",
    "tent",
    "boat",
    "guitar",
    "ladder",
    "mirror",
]
NOISE = (
    "The meeting was moved to the larger room on the second floor.",
    "Rain fell for most of the afternoon and the streets were wet.",
    "The train to the coast leaves every hour from platform nine.",
    "A new bakery opened beside the old post office last week.",
    "The museum keeps its doors open until six in the evening.",
    "Several trees along the river were planted many years ago.",
    "The bridge will be closed for repairs until the end of May.",
    "Coffee is served in the hall after the second lecture.",
    "The library has extended its opening hours for the summer.",
    "A small crowd gathered in front of the town hall at noon.",
    "The report lists the number of visitors for every month.",
    "Fresh vegetables are sold at the market on Saturdays.",
    "The road to the mountains is narrow and often covered with snow.",
    "The committee agreed to publish the results in spring.",
    "A ferry crosses the lake twice a day during the season.",
    "The garden behind the school was opened to the public.",
)
FACTS, NOISES = 4, 11
PREFIX = "Notes from the town, to be read with care.\n"
ASK = "\nQuestion: What did {name} buy?\nAnswer: {name} bought a"
SHARES = (0.06, 0.12, 0.25)
"""Bytes of a patch, and of recomputed rows, as a share of the bytes of B's KV."""


@dataclass(frozen=True)
class Item:
    """One question over two chunks of text."""

    first: str
    second: str
    ask: str
    colours: tuple[str, ...]
    answer: int


def items(count: int, seed: int) -> Iterator[Item]:
    """`count` items; the same seed gives the same ones."""
    rng = random.Random(seed)
    for _ in range(count):
        names, roles, colours, objects = (
            rng.sample(pool, FACTS) for pool in (NAMES, ROLES, COLOURS, OBJECTS)
        )
        who = [f"The {role} is {name}." for name, role in zip(names, roles, strict=True)]
        bought = zip(roles, colours, objects, strict=True)
        what = [f"The {role} bought a {colour} {thing}." for role, colour, thing in bought]
        rng.shuffle(what)
        first, second = _padded(rng, who), _padded(rng, what)
        answer = rng.randrange(FACTS)
        yield Item(first, second, ASK.format(name=names[answer]), tuple(colours), answer)


def _padded(rng: random.Random, facts: Sequence[str]) -> str:
    text = list(facts)
    for sentence in rng.sample(NOISE, NOISES):
        text.insert(rng.randrange(len(text) + 1), sentence)
    return " ".join(text) + "\n"


def arms(
    reference: Reference, ids: Sequence[Sequence[int]], window: list[KVBlock], canonical: KVBlock, seed: int
) -> dict[str, Callable[[], list[KVBlock]]]:
    """Everything B's KV can be, by name. ids: of [prefix, A, B]; canonical: B behind the prefix alone."""
    prefix, first, target = window
    moved = reference.move(canonical, int(target.positions[0]))
    delta = deficit(target.slots, moved.slots)
    start, n = int(target.positions[0]), moved.tokens
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    joined = list(itertools.chain(*ids))

    def patched(**how: Any) -> Callable[[], list[KVBlock]]:
        return lambda: [prefix, first, apply(moved, form(delta, **how))]

    def rows(chosen: torch.Tensor) -> Callable[[], list[KVBlock]]:
        return lambda: [reference.recompute(join([prefix, first, moved]), joined, start + chosen)]

    made: dict[str, Callable[[], list[KVBlock]]] = {
        "blind": lambda: [prefix, first, canonical],
        "rotate": lambda: [prefix, first, moved],
    }
    for share in SHARES:
        budget, count = Budget(share=share), round(share * n)
        made[f"patch by energy, {share:.0%}"] = patched(budget=budget)
        made[f"patch by energy in bf16, {share:.0%}"] = patched(budget=budget, dtype=torch.bfloat16)
        made[f"patch by energy, keys x4, {share:.0%}"] = patched(budget=budget, weights=(4.0, 1.0))
        made[f"patch by energy, deepest two thirds, {share:.0%}"] = patched(budget=budget, layers=2 / 3)
        made[f"patch of uniform rank, {share:.0%}"] = patched(budget=budget, scheme="uniform")
        made[f"random rows, {share:.0%}"] = rows(order[:count])
        made[f"first rows, {share:.0%}"] = rows(torch.arange(count))
    return made


def measure(
    reference: Reference, encode: Callable[[str], list[int]], item: Item, seed: int
) -> dict[str, Any]:
    """Whether each arm ranks the right colour first, its KL to re-prefill and its choice."""
    ids = [encode(PREFIX), encode(item.first), encode(item.second)]
    lengths = [len(part) for part in ids]
    window = split(reference.prefill(list(itertools.chain(*ids))), lengths)
    canonical = split(reference.prefill([*ids[0], *ids[2]]), [lengths[0], lengths[2]])[1]
    ask = encode(item.ask)
    choices = [encode(" " + colour)[0] for colour in item.colours]
    made = {"re-prefill": lambda: window} | arms(reference, ids, window, canonical, seed)
    logits = reference.ask([make() for make in made.values()], ask, last=1)[:, 0]  # [arms, vocab]
    apart = divergence(logits[:1], logits)
    return {
        "tokens": lengths[2],
        "answer": item.answer,
        "arms": {
            name: {"choice": int(row[choices].argmax()), "kl": float(gap)}
            for name, row, gap in zip(made, logits, apart, strict=True)
        },
    }


def main() -> None:
    """Parse arguments, run the gates, then every item."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=100)
    parser.add_argument(
        "--seed", type=int, default=0, help="0 for the reported items, anything else to choose on"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("bench/results/binding_qwen05.json"))
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(args.threads)
    loaded = hf.load(qwen_coder.ensure())
    reference = Reference(loaded.model)

    def encode(text: str) -> list[int]:
        return loaded.tokenizer(text, add_special_tokens=False)["input_ids"]

    head = {
        "model": loaded.name,
        "fingerprint": loaded.fingerprint,
        "seed": args.seed,
        "task": {"facts": FACTS, "noise_sentences": NOISES, "prefix": PREFIX, "ask": ASK},
        "hardware": f"{hardware()}, {args.threads} threads",
    }
    state: dict[str, Any] = {**head, "items": []}
    if args.out.exists():
        before = json.loads(args.out.read_text())
        if all(before.get(key) == value for key, value in head.items()):
            state = before
    chosen = list(items(args.items, args.seed))
    probe = [encode(text) for text in (PREFIX, chosen[0].first, chosen[0].second, chosen[0].ask)]
    state["gates"] = gates.check(reference, *probe)
    print("gates passed:", state["gates"], flush=True)
    for index in range(len(state["items"]), args.items):
        began = time.perf_counter()
        state["items"].append(measure(reference, encode, chosen[index], index))
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(state, indent=1) + "\n")
        print(f"item {index + 1} of {args.items}: {time.perf_counter() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
