"""What a run found, in numbers. The field names of the JSON are a promise to whoever reads it."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any, Literal

Status = Literal["reused", "rotated", "patched", "recomputed", "decoded"]
"""What happened to tokens in a turn; patched: brought from the store, with a patch or as they were."""
TOKENS = ("prompt", "reused", "rotated", "patched", "recomputed")
ARMS = ("ttft_ms", "prefix_ttft_ms", "reprefill_ttft_ms")
KL_NOISE = 1e-6
"""KL (nats) that rounding alone makes; a budget is not exceeded by less."""


@dataclass(frozen=True)
class Turn:
    """One turn. Tokens by what happened to them, milliseconds, nats, bytes.

    ttft_ms: from the first edit call to the first token. edit_ms: the part of it outside the model's forward.
    kl: KL(re-prefill ‖ window) of the next token, mean over the question. agreement: share of the greedy
    answer of a re-prefill that the window gives before they differ. patch_bytes: all patches in the store.
    idle_ms: settling behind the answer.
    """

    turn: int
    op: str
    prompt_tokens: int
    reused_tokens: int
    rotated_tokens: int
    patched_tokens: int
    recomputed_tokens: int
    ttft_ms: float
    prefix_ttft_ms: float
    reprefill_ttft_ms: float
    kl: float
    agreement: float
    kv_bytes: int
    patch_bytes: int
    idle_ms: float
    edit_ms: float

    @property
    def gain(self) -> float:
        """How many times sooner than the faster of the two other arms; below 1 when later."""
        return min(self.prefix_ttft_ms, self.reprefill_ttft_ms) / self.ttft_ms


@dataclass(frozen=True)
class Segment:
    """Neighbouring tokens of one message that had one fate. key: what names it over all turns."""

    key: str
    name: str
    status: Status
    tokens: int


@dataclass(frozen=True)
class Scene:
    """What the pictures show of a turn: the window from left to right, behind the answer."""

    event: str
    answer: str
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class Run:
    """A whole run. budget: the KL (nats) its policy promises."""

    model: str
    policy: str
    hardware: str
    threads: int
    budget: float
    turns: tuple[Turn, ...]
    scenes: tuple[Scene, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "policy": self.policy,
            "hardware": self.hardware,
            "threads": self.threads,
            "turns": [asdict(turn) for turn in self.turns],
            "summary": summary(self.turns),
        }


def summary(turns: Sequence[Turn]) -> dict[str, float]:
    """Medians, totals and their ratios over all turns."""
    found: dict[str, float] = {}
    for arm in ARMS:
        times = [getattr(turn, arm) for turn in turns]
        found[f"median_{arm}"], found[f"total_{arm}"] = median(times), sum(times)
    for other in ("prefix", "reprefill"):
        for kind, name in (("median", f"speedup_vs_{other}"), ("total", f"total_speedup_vs_{other}")):
            found[name] = found[f"{kind}_{other}_ttft_ms"] / found[f"{kind}_ttft_ms"]
    found |= {f"total_{name}_tokens": sum(getattr(t, f"{name}_tokens") for t in turns) for name in TOKENS}
    found |= {f"total_{name}": sum(getattr(t, name) for t in turns) for name in ("edit_ms", "idle_ms")}
    return found | {
        "mean_kl": mean(t.kl for t in turns),
        "max_kl": max(t.kl for t in turns),
        "mean_agreement": mean(t.agreement for t in turns),
    }


def verdict(run: Run) -> str:
    """One line that says what the run shows, the bad with the good."""
    s = summary(run.turns)
    words = [
        f"{run.policy}: first token after {_seconds(s['median_ttft_ms'])} in the median, "
        f"{_against(s['speedup_vs_prefix'], 'longest-prefix reuse')}, "
        f"{_against(s['speedup_vs_reprefill'], 're-prefill')}",
        f"mean KL {s['mean_kl']:.2g}, greedy agreement {s['mean_agreement']:.0%}",
    ]
    slow = [t.turn for t in run.turns if t.gain < 1]
    over = [t for t in run.turns if t.kl > run.budget + KL_NOISE]
    words.append(f"slower than the faster of the two on {_turns(slow)}" if slow else "fastest on every turn")
    if over:
        worst = max(over, key=lambda t: t.kl)
        words.append(
            f"KL above the {run.policy} budget of {run.budget:g} on {_turns([t.turn for t in over])} "
            f"(worst {worst.kl:.2g})"
        )
    else:
        words.append(f"KL within the budget of {run.budget:g} on every turn")
    return "; ".join(words) + "."


def setting(run: Run) -> str:
    """What the numbers were measured on."""
    plural = "" if run.threads == 1 else "s"
    return f"{run.model}, policy {run.policy}, on {run.hardware}, {run.threads} thread{plural}"


def _against(ratio: float, other: str) -> str:
    return f"{ratio:.1f}x sooner than {other}" if ratio >= 1 else f"{1 / ratio:.1f}x LATER than {other}"


def _turns(numbers: Sequence[int]) -> str:
    """Turns by number, neighbours as a range."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    text = ", ".join("-".join(map(str, r)) for r in ranges)
    return f"turn{'' if len(numbers) == 1 else 's'} {text}"


def _seconds(ms: float) -> str:
    return f"{ms / 1e3:.2f} s" if ms >= 1e3 else f"{ms:.0f} ms"


def hardware() -> str:
    """The processor and how many cores this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{_processor()}, {cores} core{'' if cores == 1 else 's'}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def to_json(run: Run) -> str:
    return json.dumps(run.to_dict(), indent=2, allow_nan=False) + "\n"
