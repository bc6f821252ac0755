"""The demo: what it plays, what it measures, what it refuses to print."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from email.message import Message
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from agentkv import Engine
from agentkv.demo.arms import First, LongestPrefix, Reprefill
from agentkv.demo.documents import choose_documents, prose, readable
from agentkv.demo.errors import BadOutput, CheckFailed, MissingExtra, TooFewDocuments
from agentkv.demo.measure import run_day
from agentkv.demo.output import require_writable, write_whole
from agentkv.demo.picture import boxes, draw, extents, require_plot
from agentkv.demo.report import Run, Scene, Segment, Turn, summary, to_json, verdict
from agentkv.demo.story import STEPS
from agentkv.demo.terminal import show, strip
from tests.integrations.demo_case import LIBRARY, story_tokenizer, tiny_engine

TURN_FIELDS = {
    "turn",
    "op",
    "prompt_tokens",
    "reused_tokens",
    "rotated_tokens",
    "patched_tokens",
    "recomputed_tokens",
    "ttft_ms",
    "prefix_ttft_ms",
    "reprefill_ttft_ms",
    "kl",
    "agreement",
    "kv_bytes",
    "patch_bytes",
    "idle_ms",
    "edit_ms",
}
SUMMARY_FIELDS = {
    "median_ttft_ms",
    "median_prefix_ttft_ms",
    "median_reprefill_ttft_ms",
    "total_ttft_ms",
    "total_prefix_ttft_ms",
    "total_reprefill_ttft_ms",
    "speedup_vs_prefix",
    "speedup_vs_reprefill",
    "total_speedup_vs_prefix",
    "total_speedup_vs_reprefill",
    "total_prompt_tokens",
    "total_reused_tokens",
    "total_rotated_tokens",
    "total_patched_tokens",
    "total_recomputed_tokens",
    "total_edit_ms",
    "total_idle_ms",
    "mean_kl",
    "max_kl",
    "mean_agreement",
}
TURN = Turn(1, "ask", 100, 60, 20, 10, 10, 50.0, 200.0, 300.0, 0.01, 1.0, 1000, 10, 5.0, 2.0)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with tiny_engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def balanced() -> Run:
    with tiny_engine() as engine:
        return run_day(engine, "balanced", LIBRARY, answer_tokens=5)


def test_day_json(balanced: Run) -> None:
    """Every turn is there, with exactly the promised fields, and tokens add up."""
    found = json.loads(to_json(balanced))
    assert set(found) == {"model", "policy", "hardware", "threads", "turns", "summary"}
    assert set(found["summary"]) == SUMMARY_FIELDS
    assert len(found["turns"]) == len(STEPS) >= 12
    for i, turn in enumerate(found["turns"]):
        assert set(turn) == TURN_FIELDS
        assert turn["turn"] == i + 1
        parts = [turn[f"{name}_tokens"] for name in ("reused", "rotated", "patched", "recomputed")]
        assert sum(parts) == turn["prompt_tokens"]
        assert 0 < turn["edit_ms"] < turn["ttft_ms"]
        assert 0 <= turn["agreement"] <= 1
        assert turn["kl"] >= 0
    assert found["turns"][0]["recomputed_tokens"] == found["turns"][0]["prompt_tokens"]
    assert found["turns"][0]["kl"] < 1e-12
    assert found["summary"]["total_rotated_tokens"] > 0
    assert found["summary"]["total_patched_tokens"] > 0
    assert found["turns"][-1]["patch_bytes"] > 0


def test_day_events(balanced: Run) -> None:
    """The window goes through what the events say."""
    names = [list(extents(boxes(scene.segments))) for scene in balanced.scenes]
    held = [[name for name in row if name.startswith("pack")] for row in names]
    at = {step.event: i for i, step in enumerate(STEPS)}
    slid, dropped, recalled = at["overflows: the oldest leave"], at["drops old tool results"], 8
    assert held[0] == ["pack0", "pack1", "pack2", "pack3", "pack4"]
    assert held[slid] == [*held[slid - 1][len(held[slid - 1]) + 1 - len(held[slid]) :], "pack9"]
    assert set(held[slid]) - set(held[dropped]) == {"pack5", "pack6", "pack7"}
    assert held[recalled] == [*held[dropped], "pack0"]
    reordered, restored, forked = (at[e] for e in (STEPS[9].event, STEPS[10].event, STEPS[11].event))
    assert held[reordered] != held[restored] == held[recalled]
    assert held[forked] == [*held[restored], "pack10"]
    assert held[forked + 1] == ["pack5", *held[restored]]
    assert held[at["back to this morning"]] == held[0]
    tools = [[name for name in row if "_" in name] for row in names]
    assert tools[3] != tools[4] == tools[12]
    assert tools[13] == tools[0]
    kept = STEPS.index(next(step for step in STEPS if step.keep))
    assert [s.name for s in balanced.scenes[kept + 1].segments].count("answer") == 2


def test_day_exact(engine: Engine) -> None:
    """The exact policy reuses prefixes only, and the demo holds it to re-prefill's logits every turn."""
    run = run_day(engine, "exact", LIBRARY, answer_tokens=3)
    assert max(turn.kl for turn in run.turns) < 1e-12
    assert {turn.agreement for turn in run.turns} == {1.0}
    assert sum(turn.rotated_tokens + turn.patched_tokens for turn in run.turns) == 0
    assert 0 < run.turns[1].reused_tokens < run.turns[1].prompt_tokens / 2


@pytest.mark.parametrize("chat", [True, False])
def test_day_fast(chat: bool) -> None:
    """The fast policy brings all it can from the store, with and without a chat template."""
    with tiny_engine(chat) as engine:
        run = run_day(engine, "fast", LIBRARY, answer_tokens=3)
    recalled = [turn for turn, step in zip(run.turns, STEPS, strict=True) if step.op in ("recall", "rewind")]
    assert all(turn.patched_tokens > turn.recomputed_tokens for turn in recalled)


def test_prefix_check_fails(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prefix arm that is off by 1e-6 stops the run."""
    honest = LongestPrefix.first_token

    def lying(self: LongestPrefix, ids: object) -> First:
        first = honest(self, ids)  # type: ignore[arg-type]
        return replace(first, logits=first.logits + 1e-6)

    monkeypatch.setattr(LongestPrefix, "first_token", lying)
    with pytest.raises(CheckFailed, match="longest-prefix"):
        run_day(engine, "balanced", LIBRARY, steps=STEPS[:2])


def test_window_check_fails(engine: Engine) -> None:
    """KV that is spoilt behind the planner's back stops an exact run."""

    def spoil(turn: Turn, scene: Scene) -> None:
        (window,) = engine._windows
        window.kv.slots[1][:, window.kv.start + 3] += 0.01

    with pytest.raises(CheckFailed, match="logits of agentkv"):
        run_day(engine, "exact", LIBRARY, steps=STEPS[:2], progress=spoil)


def test_nan_check_fails(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN is no agreement."""
    honest = LongestPrefix.first_token
    monkeypatch.setattr(
        LongestPrefix,
        "first_token",
        lambda self, ids: replace(honest(self, ids), logits=torch.full((3,), torch.nan)),
    )
    monkeypatch.setattr(Reprefill, "first_token", lambda self, ids: First(1.0, torch.zeros(3)))
    with pytest.raises(CheckFailed, match="nan"):
        run_day(engine, "balanced", LIBRARY, steps=STEPS[:1])


def test_summary_by_hand() -> None:
    """Ratios are of medians and of totals."""
    found = summary(
        [TURN, replace(TURN, ttft_ms=100.0, prefix_ttft_ms=100.0, kl=0.03), replace(TURN, ttft_ms=30.0)]
    )
    assert found["median_ttft_ms"] == 50
    assert found["speedup_vs_prefix"] == 200 / 50
    assert found["total_speedup_vs_prefix"] == 500 / 180
    assert found["max_kl"] == 0.03
    assert found["total_reused_tokens"] == 180


def test_verdict_tells_bad_news() -> None:
    """Slower turns and budgets that did not hold are in the one line; good news needs none of it."""
    good = Run("m", "balanced", "cpu", 1, 0.05, (TURN,), (Scene("e", "a", ()),))
    assert "4.0x sooner than longest-prefix" in verdict(good)
    assert "fastest on every turn" in verdict(good)
    bad = replace(good, turns=(TURN, replace(TURN, turn=2, ttft_ms=900.0, kl=0.2)))
    assert "LATER than longest-prefix reuse" in verdict(bad)
    assert "LATER" not in verdict(good)
    assert "slower than the faster of the two on turn 2" in verdict(bad)
    assert "KL above the balanced budget of 0.05 on turn 2 (worst 0.2)" in verdict(bad)


class Package:
    """As much of a distribution as the demo reads."""

    def __init__(self, name: str, text: str, in_header: bool = False) -> None:
        self.metadata = Message()
        self.metadata["Name"] = name
        if in_header:
            self.metadata["Description"] = text
        else:
            self.metadata.set_payload(text)


SENTENCE = "This is the part of the text that a reader of the package can see and use. "


def test_documents_sorted_and_cut() -> None:
    """Sorted by name, long ones only, no twin with a number, cut to at most the size asked for."""
    packages = [
        Package(name, SENTENCE * 30, name == "Zeta") for name in ("Zeta", "alpha", "Beta", "beta2", "Beta2")
    ]
    packages += [Package("short", SENTENCE), Package("agentkv-window", SENTENCE * 30)]
    assert [name for name, _ in readable(packages)] == ["alpha", "Beta", "beta2", "Zeta"]
    tokenizer = story_tokenizer()
    chosen = choose_documents(tokenizer, (40, 20), packages)
    assert [d.name for d in chosen] == ["alpha", "Beta"]
    assert [d.tokens for d in chosen] == [len(d.text.split()) for d in chosen]
    assert all(0.85 * size <= d.tokens <= size for size, d in zip((40, 20), chosen, strict=True))
    with pytest.raises(TooFewDocuments):
        choose_documents(tokenizer, (40,) * 5, packages)


@pytest.mark.parametrize(
    "noise",
    [
        "```python\nimport this\n```",
        "[![badge](https://x.y/z.svg)](https://x.y)",
        ".. image:: https://x.y/z.png\n   :target: a\n",
        "<p align='center'><img src='x.png'></p>",
        "| a | b |\n|---|---|",
        "Heading\n=======",
    ],
)
def test_prose_drops_noise(noise: str) -> None:
    """Markup around a paragraph does not reach the document."""
    assert prose(f"{noise}\n\n{SENTENCE}\n\n{noise}\n") == SENTENCE.strip()


def test_prose_keeps_the_text_of_links() -> None:
    text = "You can see [the manual](https://a.b) and `the code <https://c.d>`_ of it in the place you know."
    assert prose(text) == "You can see the manual and the code of it in the place you know."


@pytest.mark.parametrize("make", [lambda d: d / "none" / "x.json", lambda d: d])
def test_output_refused_before(tmp_path: Path, make: object) -> None:
    with pytest.raises(BadOutput, match="expected"):
        require_writable(make(tmp_path))  # type: ignore[operator]
    with pytest.raises(BadOutput, match="no file"):
        require_writable(Path("/dev/null"))


def test_output_is_whole_or_old(tmp_path: Path) -> None:
    """An interruption in the middle of writing leaves what was there, and nothing beside it."""
    path = tmp_path / "run.json"
    write_whole(path, lambda p: p.write_text("old"))

    def half(scratch: Path) -> None:
        scratch.write_text("hal")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(path, half)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_picture(balanced: Run, tmp_path: Path, suffix: str) -> None:
    """It draws, with one label a turn and the documents' names in the strips."""
    pytest.importorskip("matplotlib")
    figure = draw(balanced)
    figure.savefig(tmp_path / f"day{suffix}")
    assert (tmp_path / f"day{suffix}").stat().st_size > 10_000
    words = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert all(step.event in words for step in STEPS)
    assert words.count("pack4") >= 10


def test_picture_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadOutput, match="suffix"):
        require_plot(Path("day.gif"))
    monkeypatch.setattr("agentkv.demo.picture.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="plot"):
        require_plot(Path("day.png"))


def test_strip_is_as_wide_as_its_tokens() -> None:
    """Cells add up to the tokens whatever the rounding of the parts."""
    segments = [Segment(f"d{i}", f"d{i}", "reused", n) for i, n in enumerate((3, 50, 1, 1, 27, 18))]
    assert [strip(segments, 100 / cells).cell_len for cells in (10, 64, 99)] == [10, 64, 99]


@pytest.mark.parametrize(("width", "columns"), [(80, 9), (120, 13), (150, 17)])
def test_terminal_fits(balanced: Run, width: int, columns: int) -> None:
    """Nothing is wider than the terminal or cut off in it; narrow ones show fewer columns."""
    console = Console(width=width, record=True, file=StringIO())
    show(console, balanced)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    (heading,) = (
        line for line in text.splitlines() if "re-prefill" in line and "agree" in line and ";" not in line
    )
    assert len(re.split(r"\s{2,}", heading.strip())) == columns
    assert verdict(balanced) in " ".join(text.split())


def test_verdict_names_ranges() -> None:
    turns = tuple(replace(TURN, turn=n, kl=0.2 if n in (2, 3, 4, 6) else 0.0) for n in range(1, 8))
    assert "on turns 2-4, 6 (" in verdict(Run("m", "fast", "cpu", 1, 0.05, turns, ()))
