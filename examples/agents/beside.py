"""The same agent beside plain re-prefill and longest-prefix reuse: every prompt it sends is run by all three.

`MeasuredChat` is `ChatAgentKV`; behind each answer it prefills the same tokens from nothing, and once more
from the longest prefix that it shares with an earlier prompt, both by transformers' own forward. KL
(re-prefill ‖ agentkv) and agreement are over the tokens of the answer, each behind the answer so far. Making
tokens of the prompt, pictures included, is counted for all three, as all three have to.
"""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import numpy as np
import torch
import typer
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk
from PIL import Image
from pydantic import PrivateAttr
from rich.console import Console
from rich.table import Table
from torch import Tensor

from agentkv import Engine, Window
from agentkv.audit import divergence
from agentkv.cache import Overlay, Run, WindowKV
from agentkv.integrations.answering import Request
from agentkv.integrations.chat import ChatAgentKV

PolicyOption = Annotated[str, typer.Option(help="exact, balanced or fast.")]
EyesOption = Annotated[
    str | None,
    typer.Option(help='"tiny" (no download, reads little), or a vision-language model; see vision.py.'),
]
ThreadsOption = Annotated[int | None, typer.Option("--threads", min=1)]
JsonOption = Annotated[Path | None, typer.Option("--json")]
PlotOption = Annotated[Path | None, typer.Option("--plot")]

Prompt = list[tuple[int, bytes]]
"""Tokens, each with the digest of the image that it stands for."""

CACHED = 12
"""Prompts that the prefix cache holds."""

ARMS = ("agentkv", "longest prefix", "re-prefill")


@dataclass(frozen=True)
class Turn:
    """One call. ttft_ms, computed: by arm, milliseconds to the first token and tokens run through the model.
    prompt_ms: of ttft_ms, what makes tokens and encodes pictures, equal for all; the rest is prefill. kl:
    nats, mean over the answer's tokens. agreement: share of them that a re-prefill would have said."""

    tokens: int
    said: int
    ttft_ms: dict[str, float]
    prompt_ms: float
    computed: dict[str, int]
    kl: float
    agreement: float
    usage: dict[str, int]
    predicted_kl: float


class MeasuredChat(ChatAgentKV):
    """Answers as `ChatAgentKV`, then measures; `turns` has what was found."""

    _turns: list[Turn] = PrivateAttr(default_factory=list)
    _past: list[tuple[Prompt, WindowKV]] = PrivateAttr(default_factory=list)

    @property
    def turns(self) -> list[Turn]:
        return self._turns

    def _answer(self, request: Request, whole: bool = False) -> Generator[ChatGenerationChunk, None, None]:
        message: Any = None
        for chunk in super()._answer(request, whole):
            message = chunk.message
            yield chunk
        self._turns.append(self._measured(message))

    def _measured(self, last: AIMessageChunk) -> Turn:
        window = self.window_of(last)
        assert window is not None
        assert window.last_answer is not None
        assert window.last_plan is not None
        assert last.usage_metadata is not None
        entry = window.content.get(window.last_answer.id)
        assert entry is not None
        uids = {uid for uid, _ in entry.parts}
        answer = [p for p in window.graph.placements if p.uid in uids]
        ids = np.concatenate([window.engine.chunks.ids(p.chunk.id) for p in answer])
        runs = window.runs(upto=answer[0].row)
        whole, truth, whole_ms = self._prefilled(window, runs, 0, ids)
        prefix, kv = self._longest(runs)
        _, _, prefix_ms = self._prefilled(window, runs, prefix, ids, kv)
        prompt = [*_tokens(runs), *((int(token), b"") for token in ids)]
        self._past = [*self._past, (prompt, whole)][-CACHED:]
        seen = Overlay(window.kv, answer[0].row)
        ours = window.engine.runner.run([Run(answer[0].row, ids, answer[0].position)], seen, keep=len(ids))
        head = len(window.engine.tokenizer(self.template.marks.head, add_special_tokens=False)["input_ids"])
        said = slice(head - 1, head - 1 + window.timing.tokens)
        usage = dict(last.usage_metadata.get("input_token_details", {}))
        tokens = sum(len(run.ids) for run in runs) + head
        told = last.response_metadata["agentkv"]
        ms = (told["ttft_ms"], told["prompt_ms"] + prefix_ms, told["prompt_ms"] + whole_ms)
        computed = (window.last_plan.tokens()["recomputed"], tokens - prefix, tokens)
        return Turn(
            tokens=tokens,
            said=window.timing.tokens,
            ttft_ms=dict(zip(ARMS, ms, strict=True)),
            prompt_ms=told["prompt_ms"],
            computed=dict(zip(ARMS, computed, strict=True)),
            kl=float(divergence(truth[said], ours[said]).mean()),
            agreement=float((truth[said].argmax(-1) == ours[said].argmax(-1)).double().mean()),
            usage={key: int(value) for key, value in usage.items()},  # type: ignore[call-overload]
            predicted_kl=told["plan"]["predicted_kl"],
        )

    def _prefilled(
        self, window: Window, runs: Sequence[Run], first: int, answer: Any, kv: WindowKV | None = None
    ) -> tuple[WindowKV, Tensor, float]:
        """Rows from ``first`` on computed, timed to the first token's logits; then those of the answer, which
        stays behind them as in any cache."""
        backend, rows = window.engine.backend, sum(len(run.ids) for run in runs)
        kv = kv if kv is not None else backend.new_kv(rows + len(answer))
        kv.grow(rows + len(answer))
        kv.start, kv.end = 0, rows
        start = time.perf_counter()
        backend.prefill(kv, list(_behind(runs, first)), keep=1)
        ms = (time.perf_counter() - start) * 1e3
        asked = Run(rows, answer, runs[-1].position_stop)
        logits = window.engine.runner.run([asked], kv.live(), keep=len(answer))
        kv.end += len(answer)
        return kv, logits, ms

    def _longest(self, runs: Sequence[Run]) -> tuple[int, WindowKV | None]:
        """The longest prefix that an earlier prompt shares, in tokens, and a copy of its rows. At least one
        token is left to compute, and images are computed whole."""
        now = list(_tokens(runs))
        shared, kv = max(
            ((_common(now, prompt), kv) for prompt, kv in self._past),
            key=lambda one: one[0],
            default=(0, None),
        )
        shared = min(shared, len(now) - 1)
        for run in runs:
            if run.media is not None and run.row < shared < run.stop:
                shared = run.row
        if kv is not None:
            kv = kv.fork()
            kv.own()
        return shared, kv


def _common(a: Prompt, b: Prompt) -> int:
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    return min(len(a), len(b)) if same is None else same


def _tokens(runs: Sequence[Run]) -> Iterator[tuple[int, bytes]]:
    for run in runs:
        digest = run.media.digest if run.media is not None else b""
        yield from ((int(token), digest) for token in run.ids)


def _behind(runs: Sequence[Run], first: int) -> Iterator[Run]:
    """The runs without rows in front of ``first``."""
    for run in runs:
        if run.row >= first:
            yield run
        elif run.stop > first:
            yield Run(first, run.ids[first - run.row :], run.first + first - run.row)


def report(turns: Sequence[Turn], title: str, json_path: Path | None, plot_path: Path | None) -> None:
    """Print the table, and write numbers and picture where they are wanted."""
    columns = ("time to first token, all turns", "of it prefill", "tokens computed", "KL", "agreement")
    table = Table("", *columns, title=title)
    whole, prompts = sum(t.ttft_ms["re-prefill"] for t in turns), sum(t.prompt_ms for t in turns)
    tokens = sum(t.computed["re-prefill"] for t in turns)
    for arm in ARMS:
        ms, computed = sum(t.ttft_ms[arm] for t in turns), sum(t.computed[arm] for t in turns)
        exact = arm != "agentkv"
        table.add_row(
            arm,
            f"{ms / 1e3:.2f} s ({ms / whole:.0%})",
            f"{(ms - prompts) / 1e3:.2f} s ({(ms - prompts) / (whole - prompts):.0%})",
            f"{computed:,} ({computed / tokens:.0%})",
            "0" if exact else f"{fmean(t.kl for t in turns):.4f}",
            "1.00" if exact else f"{fmean(t.agreement for t in turns):.2f}",
        )
    Console().print(table)
    if json_path is not None:
        found = {"title": title, "turns": [asdict(turn) for turn in turns]}
        json_path.write_text(json.dumps(found, indent=1) + "\n")
    if plot_path is not None:
        _draw(turns, title, plot_path)


def _draw(turns: Sequence[Turn], title: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (above, below) = plt.subplots(2, 1, figsize=(8, 6), sharex=True)
    numbers = range(1, len(turns) + 1)
    for arm, colour in zip(ARMS, ("#2a7", "#e90", "#c33"), strict=True):
        above.plot(numbers, [t.ttft_ms[arm] for t in turns], "o-", label=arm, color=colour)
    above.set(ylabel="ms to the first token", yscale="log", title=title)
    above.legend()
    bottom = np.zeros(len(turns))
    for name, colour in (("kept", "#9c9"), ("rotated", "#69c"), ("patched", "#b8d"), ("computed", "#c66")):
        size = np.array([_share(turn, name) for turn in turns])
        below.bar(numbers, size, bottom=bottom, label=name, color=colour)
        bottom += size
    below.set(ylabel="tokens of the prompt", xlabel="call")
    below.legend(ncol=4, fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _share(turn: Turn, name: str) -> int:
    usage = turn.usage
    return {
        "kept": usage["cache_read"] - usage["agentkv_rotated"],
        "rotated": usage["agentkv_rotated"],
        "patched": usage["agentkv_patched"],
        "computed": usage["cache_creation"],
    }[name]


def image(picture: Image.Image) -> dict[str, Any]:
    """A block of a message that shows it."""
    file = io.BytesIO()
    picture.save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    return {"type": "image", "base64": data, "mime_type": "image/png"}


def said(message: AIMessage) -> str:
    """The first line of an answer, for people."""
    return message.text.strip().partition("\n")[0][:100]


def threads(number: int | None) -> None:
    if number is not None:
        torch.set_num_threads(number)


def warm(engine: Engine) -> None:
    """Whatever is slow only once, before anything is timed."""
    with engine.window() as window:
        window.append("One, two, three.")
        window.generate("And then?", max_new_tokens=2)
