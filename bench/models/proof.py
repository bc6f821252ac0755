"""What a conversion of weights does to a model's predictions over real text."""

import argparse
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import distribution
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div

from agentkv.calibrate import hardware
from agentkv.diagnose.documents import readmes

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Text:
    """ids: int64 [T]. first: the first token that counts."""

    name: str
    ids: Tensor
    first: int = 1


def texts(tokenizer: Any, tokens: int = 1024) -> list[Text]:
    """Two READMEs and a module of source code, the end of a text four times as long, and a copy task."""

    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    # The README of this project is left out: it changes with every version of it.
    named = ((f"README of {name}", text) for name, text in readmes() if not name.startswith("agentkv"))
    prose = list(islice(_cut(encode, tokens, named), 2))
    short, long = next(_cut(encode, tokens, _sources())), next(_cut(encode, 4 * tokens, _sources()))
    return [*prose, short, replace(long, first=3 * tokens), _copy(len(tokenizer), tokens)]


def _sources() -> Iterator[tuple[str, str]]:
    # networkx is pinned and has long modules of ordinary code.
    folder = Path(str(distribution("networkx").locate_file("networkx/algorithms")))
    for path in sorted(folder.glob("[a-z]*.py")):
        yield f"source of networkx {path.name}", path.read_text()


def _cut(
    encode: Callable[[str], Sequence[int]], tokens: int, named: Iterable[tuple[str, str]]
) -> Iterator[Text]:
    """The first `tokens` tokens of each text that is long enough."""
    for name, text in named:
        ids = torch.tensor(encode(text)[:tokens])
        if len(ids) == tokens:
            yield Text(name, ids)


def _copy(vocabulary: int, tokens: int) -> Text:
    # Random ids, then the same again: only attention across half the text predicts the second half.
    half = torch.randint(vocabulary, (tokens // 2,), generator=torch.Generator().manual_seed(0))
    return Text("copy of random tokens", torch.cat([half, half]), first=tokens // 2 + 1)


@torch.inference_mode()
def logits(model: Any, text: Text) -> Tensor:
    """Logits [T - first, vocabulary] of the tokens that count, the text being at position 0."""
    positions = torch.arange(len(text.ids))[None]
    keep = len(text.ids) - text.first + 1
    out = model(input_ids=text.ids[None], position_ids=positions, use_cache=False, logits_to_keep=keep)
    return out.logits[0, :-1]


def row(step: str, text: Text, before: Tensor, after: Tensor) -> Row:
    """One row of the proof from the logits [n, vocabulary] before and after a step.

    kl: mean KL(before ‖ after) in nats per token. logits: the largest difference.
    """
    truth = text.ids[text.first :]
    pairs = zip(before.split(128), after.split(128), strict=True)  # in fp64 all at once takes many gigabytes
    kl = sum(_kl(*pair) for pair in pairs) / len(truth)
    return {
        "step": step,
        "text": text.name,
        "length": len(text.ids),
        "tokens": len(truth),
        "loss before": cross_entropy(before, truth).item(),
        "loss after": cross_entropy(after, truth).item(),
        "kl": kl,
        "logits": (after - before).abs().max().item(),
        "same top token": (before.argmax(-1) == after.argmax(-1)).float().mean().item(),
    }


def _kl(before: Tensor, after: Tensor) -> float:
    """Σ KL(before ‖ after) over logits [n, vocabulary], in fp64."""
    p, q = before.double().log_softmax(-1), after.double().log_softmax(-1)
    return kl_div(q, p, reduction="sum", log_target=True).item()


def save(rows: Iterable[Row], target: Path) -> None:
    """Print each of `rows` when it is there; write all of them to `target` with the hardware."""
    done = []
    for entry in rows:
        done.append(entry)
        shown = (f"{value:.4g}" if isinstance(value, float) else str(value) for value in entry.values())
        print("  ".join(shown), flush=True)
    target.write_text(json.dumps({"hardware": hardware(), "rows": done}, indent=1) + "\n")


def main(what: str, ensure: Callable[[], Path], prove: Callable[[], Iterable[Row]], result: Path) -> None:
    """The command line of a conversion: make it, print where it lies, and with --prove measure it."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--prove", action="store_true", help=f"measure the conversion, write {result}")
    arguments = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(1)
    print(ensure())
    if arguments.prove:
        save(prove(), result)
