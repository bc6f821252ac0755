"""What a conversion of weights does to a model's predictions over real text."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import distribution
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div

from agentkv.calibrate import hardware
from agentkv.diagnose import documents

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Text:
    """ids: int64 [T]. first: the first token that counts."""

    name: str
    ids: Tensor
    first: int = 1


def texts(tokenizer: Any, tokens: int = 1024) -> list[Text]:
    """Two READMEs, a module of source code and a copy task, `tokens` tokens each."""

    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    readmes = [
        Text(f"README of {document.name}", torch.tensor(document.ids[:tokens]))
        for document in documents.tokenised(encode, documents.readmes(), tokens)[:2]
    ]
    return [*readmes, *islice(_sources(encode, tokens), 1), _copy(len(tokenizer), tokens)]


def _sources(encode: Callable[[str], Sequence[int]], tokens: int) -> Iterator[Text]:
    # networkx is pinned and has long modules of ordinary code.
    for path in sorted(Path(str(distribution("networkx").locate_file("networkx/algorithms"))).glob("*.py")):
        ids = torch.tensor(encode(path.read_text())[:tokens])
        if len(ids) == tokens:
            yield Text(f"source of networkx {path.name}", ids)


def _copy(vocabulary: int, tokens: int) -> Text:
    # Random ids, then the same again: only attention across half the text predicts the second half.
    half = torch.randint(vocabulary, (tokens // 2,), generator=torch.Generator().manual_seed(0))
    return Text("copy of random tokens", torch.cat([half, half]), first=tokens // 2 + 1)


@torch.inference_mode()
def logits(model: Any, ids: Tensor) -> Tensor:
    """Logits [T, vocabulary] of `ids` int64 [T] from position 0."""
    return model(input_ids=ids[None], position_ids=torch.arange(len(ids))[None], use_cache=False).logits[0]


def loss(scores: Tensor, text: Text) -> float:
    """Mean nats per token that counts, given logits [T, vocabulary]."""
    return cross_entropy(scores[text.first - 1 : -1], text.ids[text.first :]).item()


def row(step: str, text: Text, before: Tensor, after: Tensor) -> Row:
    """One row of the proof from the logits [T, vocabulary] before and after a step.

    kl: mean KL(before ‖ after) in nats over the tokens that count. logits: the largest difference.
    """
    counted = slice(text.first - 1, -1)
    reference, changed = before[counted].log_softmax(-1), after[counted].log_softmax(-1)
    return {
        "step": step,
        "text": text.name,
        "tokens": len(text.ids) - text.first,
        "loss before": loss(before, text),
        "loss after": loss(after, text),
        "kl": kl_div(changed, reference, reduction="batchmean", log_target=True).item(),
        "logits": (after - before).abs().max().item(),
        "same top token": (before[counted].argmax(-1) == after[counted].argmax(-1)).float().mean().item(),
    }


def save(rows: Sequence[Row], target: Path) -> None:
    """Print `rows` and write them to `target` with the hardware."""
    for entry in rows:
        print(
            "  ".join(f"{value:.4g}" if isinstance(value, float) else str(value) for value in entry.values())
        )
    target.write_text(json.dumps({"hardware": hardware(), "rows": list(rows)}, indent=1) + "\n")
