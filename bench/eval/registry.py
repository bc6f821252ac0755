"""``python -m bench.eval.registry``: how much of a prompt is known below a header that changes.

Every arm sees the same prompts in order and learns each after it was asked. What counts is tokens behind the
longest exact prefix (in blocks of 16, as engines cache it): of these, the share that an arm knows.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from agentkv_orchestrator.chunks import Ids, digest
from agentkv_orchestrator.cut import cut
from agentkv_orchestrator.registry import Registry
from transformers import AutoTokenizer

from agentkv.diagnose.documents import readmes
from agentkv.inputs import SINK_TOKENS
from agentkv.models import embedded
from bench.traces import bfcl
from bench.traces.generated import Prompt, retrieval, under_headers

RESULT = Path(__file__).parents[1] / "results" / "registry.json"
BLOCK, WINDOW = 16, 128
Run = tuple[int, int]


class Text(NamedTuple):
    """A prompt as tokens. edges: boundaries of its segments, none where it is tokenised as one."""

    ids: Ids
    edges: tuple[int, ...]


class Arm(Protocol):
    """Which runs of a prompt are known; it is learned with the asking."""

    def __call__(self, text: Text) -> list[Run]: ...


class ExactPrefix:
    """The longest prefix of whole blocks that any prompt before began with."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def __call__(self, text: Text) -> list[Run]:
        key, known, still = "", 0, True
        for stop in range(BLOCK, text.ids.size + 1, BLOCK):
            key = digest(text.ids[stop - BLOCK : stop], key)
            still &= key in self._seen
            known = stop if still else known
            self._seen.add(key)
        return [(0, known)]


class Pieces:
    """Pieces found again by their content alone. cutting: how they are made."""

    def __init__(self, cutting: str) -> None:
        self._cutting, self._seen, self._rng = cutting, set[str](), random.Random(0)

    def __call__(self, text: Text) -> list[Run]:
        pieces = [(a, b, digest(text.ids[a:b], "")) for a, b in self._cut(text)]
        found = [(a, b) for a, b, key in pieces if key in self._seen]
        self._seen |= {key for *_, key in pieces}
        return found

    def _cut(self, text: Text) -> list[Run]:
        size = text.ids.size
        if self._cutting == "content":
            return cut(text.ids, text.edges)
        stops = list(range(WINDOW, size, WINDOW))
        if self._cutting == "random":
            stops = sorted(self._rng.sample(range(1, size), min(size - 1, size // WINDOW)))
        return list(zip([0, *stops], [*stops, size], strict=True))


class FixedWindows:
    """Content-defined chunks, and what they miss by windows of 128 tokens from its start on, as the paper has
    it."""

    def __init__(self) -> None:
        self._chunks, self._windows = Pieces("content"), set[str]()

    def __call__(self, text: Text) -> list[Run]:
        found = self._chunks(text)
        hits = set(found)
        for a, b in (piece for piece in cut(text.ids, text.edges) if piece not in hits):
            windows = [(x, min(x + WINDOW, b)) for x in range(a, b, WINDOW)]
            keys = [digest(text.ids[x:y], "") for x, y in windows]
            found += [w for w, key in zip(windows, keys, strict=True) if key in self._windows]
            self._windows |= set(keys)
        return found


class Whole:
    """The registry, with anchors."""

    def __init__(self) -> None:
        self._registry = Registry("model")

    def __call__(self, text: Text) -> list[Run]:
        found = self._registry.admit(text.ids, "prompt", text.edges, SINK_TOKENS)
        return [(span.start, span.stop) for _, span in found if span.found != "new"]


ARMS: dict[str, tuple[type[Any], tuple[Any, ...], bool]] = {
    "random cuts": (Pieces, ("random",), False),
    "fixed blocks of 128": (Pieces, ("fixed",), False),
    "content-defined chunks": (Pieces, ("content",), False),
    "chunks, missed ones by fixed windows (S1)": (FixedWindows, (), False),
    "registry: chunks and anchors (S1)": (Whole, (), False),
    "random cuts, boundaries (S2)": (Pieces, ("random",), True),
    "content-defined chunks, boundaries (S2)": (Pieces, ("content",), True),
    "registry: chunks, anchors and boundaries (S1, S2)": (Whole, (), True),
}
"""By name: what it is made by, and whether it is told the boundaries."""


def texts(prompts: Iterable[Prompt], tokenizer: Any) -> Iterator[tuple[str, Text, Text]]:
    """(session, tokenised as one, tokenised segment by segment)."""
    known: dict[str, list[int]] = {}
    for prompt in prompts:
        for segment in prompt.segments:
            if segment not in known:
                known[segment] = tokenizer(segment, add_special_tokens=False)["input_ids"]
        parts = [known[segment] for segment in prompt.segments]
        edges = tuple(accumulate(map(len, parts)))[:-1]
        one = tokenizer("".join(prompt.segments), add_special_tokens=False, verbose=False)["input_ids"]
        yield prompt.session, Text(np.array(one), ()), Text(np.array([t for p in parts for t in p]), edges)


def measure(prompts: Iterable[Prompt], tokenizer: Any) -> dict[str, Any]:
    """Shares by arm, with a bootstrap interval over sessions."""
    arms = {name: (make(*args), told) for name, (make, args, told) in ARMS.items()}
    prefixes = {False: ExactPrefix(), True: ExactPrefix()}
    counts: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    tokens = number = 0
    for session, one, parted in texts(prompts, tokenizer):
        number, tokens = number + 1, tokens + one.ids.size
        front = {told: prefixes[told](text)[0][1] for told, text in ((False, one), (True, parted))}
        _add(counts["exact prefix"][session], front[False], one.ids.size)
        for name, (arm, told) in arms.items():
            text = parted if told else one
            known = sum(max(0, b - max(a, front[told])) for a, b in arm(text))
            _add(counts[name][session], known, text.ids.size - front[told])
    shares = {name: _share(list(by.values())) for name, by in counts.items()}
    return {"prompts": number, "sessions": len(counts["exact prefix"]), "tokens": tokens, "arms": shares}


def _add(to: list[int], known: int, of: int) -> None:
    to[0] += known
    to[1] += of


def _share(sessions: Sequence[Sequence[int]], resamples: int = 1000) -> dict[str, float]:
    """Known tokens over tokens, and the 2.5 and 97.5 percentile over resampled sessions."""
    table = np.array(sessions)
    rows = np.random.default_rng(0).integers(0, len(table), (resamples, len(table)))
    sums = table[rows].sum(axis=1)
    low, high = np.percentile(sums[:, 0] / sums[:, 1], [2.5, 97.5])
    share = table[:, 0].sum() / table[:, 1].sum()
    return {"share": round(float(share), 4), "low": round(float(low), 4), "high": round(float(high), 4)}


def check() -> None:
    """What the arms say of a text they know, shifted, and of one they do not. Raises ValueError."""
    rng = np.random.default_rng(0)
    body, other = rng.integers(0, 40_000, 4000), rng.integers(0, 40_000, 4000)
    for name, (make, args, _) in ARMS.items():
        arm = make(*args)
        arm(Text(body, ()))
        known = sum(b - a for a, b in arm(Text(body, ())))
        strange = sum(b - a for a, b in arm(Text(other, ())))
        if strange or (known < body.size and "random" not in name):
            raise ValueError(f"{name}: knows {known} of {body.size} tokens it met, {strange} it never met")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.eval.registry", description=__doc__)
    parser.add_argument("--conversations", type=int, default=60, help="of the leaderboard's, at most")
    parser.add_argument("--out", type=Path, default=RESULT, help="where the JSON goes")
    options = parser.parse_args(arguments)
    check()
    tokenizer = AutoTokenizer.from_pretrained(embedded.ensure())
    documents = [text[:6000] for _, text in readmes()][:40]
    traces: dict[str, tuple[str, Iterable[Prompt]]] = {
        "tool calls": (bfcl.SOURCE, under_headers(bfcl.conversations()[: options.conversations])),
        "retrieval": ("READMEs of installed distributions", retrieval(documents, sessions=20, turns=12)),
    }
    found = {
        name: {"source": source, **measure(prompts, tokenizer)} for name, (source, prompts) in traces.items()
    }
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
