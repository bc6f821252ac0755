"""The same run in a terminal: a strip of blocks per turn, a table, one line of verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from agentkv.demo.picture import FATES
from agentkv.demo.report import KL_NOISE, Run, Scene, Segment, Turn, setting, verdict

LABELS = 36
"""Cells in front of a strip: the turn and what happened."""
MEDIUM, WIDE = 116, 148
"""Widths from which the table shows more columns."""
WIDEST = 110
"""Cells of the widest strip; more only looks stretched."""


def show(console: Console, run: Run) -> None:
    """Strips, table and verdict."""
    console.print()
    console.print(strips(run, min(WIDEST, console.width - LABELS)))
    console.print()
    console.print(table(run, console.width))
    console.print(setting(run), style="dim", highlight=False)
    console.print(Text(verdict(run), style="bold"))


def live_line(turn: Turn, scene: Scene) -> Text:
    """What is said while the run goes on."""
    line = Text(f"{turn.turn:>2} ")
    line.append(f"{scene.event:<34}")
    line.append(f"{turn.ttft_ms:>7.0f} ms", style="bold")
    line.append(f"  prefix {turn.prefix_ttft_ms:.0f}, re-prefill {turn.reprefill_ttft_ms:.0f}  ", style="dim")
    line.append(f"“{scene.answer}”", style="italic")
    line.truncate(150, overflow="ellipsis")
    return line


def strips(run: Run, cells: int) -> RenderableType:
    """The window of every turn from left to right, all to one scale: the widest is ``cells`` wide."""
    widest = max(sum(s.tokens for s in scene.segments) for scene in run.scenes)
    grid = Table.grid(padding=(0, 1))
    for turn, scene in zip(run.turns, run.scenes, strict=True):
        grid.add_row(Text(str(turn.turn), style="dim"), scene.event, strip(scene.segments, widest / cells))
    return Group(legend(run), grid)


def strip(segments: Sequence[Segment], per_cell: float) -> Text:
    """Blocks in the colour of what happened, with the first letters of a message where there is room."""
    text = Text(no_wrap=True)
    x = cells = 0
    for i, segment in enumerate(segments):
        x += segment.tokens
        width = max(0, round(x / per_cell) - cells)
        cells += width
        first = i == 0 or segments[i - 1].key != segment.key
        text.append(
            _block(segment.name if first else "", width), style=f"white on {FATES[segment.status][0]}"
        )
    return text


def _block(name: str, width: int) -> str:
    """A name in so many cells, a thin edge in front of it."""
    if width < 1:
        return ""
    edge = "▏" if name else " "
    return edge + name[: width - 1].ljust(width - 1)


def legend(run: Run) -> Text:
    text = Text()
    present = {s.status for scene in run.scenes for s in scene.segments}
    for status, (colour, words) in FATES.items():
        if status in present:
            text.append("██ ", style=colour).append(f"{words}   ", style="dim")
    return text


COLUMNS: tuple[tuple[str, int, Callable[[Turn], str]], ...] = (
    ("turn", 0, lambda t: str(t.turn)),
    ("op", 0, lambda t: t.op),
    ("tokens", 0, lambda t: str(t.prompt_tokens)),
    ("reused", MEDIUM, lambda t: _count(t.reused_tokens)),
    ("rotated", MEDIUM, lambda t: _count(t.rotated_tokens)),
    ("stored", MEDIUM, lambda t: _count(t.patched_tokens)),
    ("recomputed", MEDIUM, lambda t: _count(t.recomputed_tokens)),
    ("agentkv", 0, lambda t: f"{t.ttft_ms:.0f}"),
    ("prefix", 0, lambda t: f"{t.prefix_ttft_ms:.0f}"),
    ("re-prefill", 0, lambda t: f"{t.reprefill_ttft_ms:.0f}"),
    ("gain", 0, lambda t: f"{t.gain:.1f}x"),
    ("KL", 0, lambda t: f"{t.kl:.2g}"),
    ("agree", 0, lambda t: f"{t.agreement:.0%}"),
    ("edit", WIDE, lambda t: f"{t.edit_ms:.0f}"),
    ("idle", WIDE, lambda t: f"{t.idle_ms:.0f}"),
    ("KV MB", WIDE, lambda t: f"{t.kv_bytes / 1e6:.0f}"),
    ("patch MB", WIDE, lambda t: f"{t.patch_bytes / 1e6:.0f}"),
)
"""Heading, how wide a terminal has to be to show it, and what stands in it; times in milliseconds."""


def table(run: Run, width: int) -> Table:
    """One row a turn, as many columns as ``width`` has room for; what went wrong is red."""
    shown = [column for column in COLUMNS if column[1] <= width]
    title = "Milliseconds to the first token, three ways over the same tokens"
    grid = Table(title=title, title_justify="left", box=SIMPLE_HEAD, collapse_padding=True)
    for heading, _, _ in shown:
        grid.add_column(heading, justify="left" if heading == "op" else "right", no_wrap=True)
    for turn in run.turns:
        grid.add_row(
            *(Text(cell(turn), style=_style(heading, turn, run.budget)) for heading, _, cell in shown)
        )
    return grid


def _style(heading: str, turn: Turn, budget: float) -> str:
    if heading == "gain":
        return "green" if turn.gain >= 1 else "red"
    if heading == "KL" and turn.kl > budget + KL_NOISE:
        return "red"
    return "bold" if heading == "agentkv" else ""


def _count(tokens: int) -> str:
    return str(tokens) if tokens else "·"
