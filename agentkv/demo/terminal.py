"""The same run in a terminal: a strip of blocks per turn, a table, one line of verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from agentkv.demo.picture import FATES
from agentkv.demo.report import KL_NOISE, Run, Scene, Segment, Turn, setting, verdict

STRIP = 64
"""Cells of the widest window."""


def show(console: Console, run: Run) -> None:
    """Strips, table and verdict."""
    console.print()
    console.print(strips(run))
    console.print()
    console.print(table(run))
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


def strips(run: Run) -> RenderableType:
    """The window of every turn from left to right; one cell is as many tokens in each row."""
    widest = max(sum(s.tokens for s in scene.segments) for scene in run.scenes)
    grid = Table.grid(padding=(0, 1))
    for turn, scene in zip(run.turns, run.scenes, strict=True):
        grid.add_row(Text(str(turn.turn), style="dim"), scene.event, strip(scene.segments, widest / STRIP))
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


def table(run: Run) -> Table:
    """One row a turn; what went wrong is red."""
    grid = Table(
        title="Time to the first token, three ways over the same tokens", title_justify="left", pad_edge=False
    )
    for name in (
        "turn",
        "op",
        "tokens",
        "reused",
        "rotated",
        "stored",
        "recomp.",
        "agentkv",
        "prefix",
        "re-prefill",
    ):
        grid.add_column(name, justify="left" if name == "op" else "right", no_wrap=True)
    for name in ("gain", "KL", "agree", "KV MB", "patches MB", "idle"):
        grid.add_column(name, justify="right", no_wrap=True)
    for turn in run.turns:
        grid.add_row(*_cells(turn, run.budget))
    return grid


def _cells(turn: Turn, budget: float) -> Iterator[RenderableType]:
    counts = (
        turn.prompt_tokens,
        turn.reused_tokens,
        turn.rotated_tokens,
        turn.patched_tokens,
        turn.recomputed_tokens,
    )
    yield from (str(turn.turn), turn.op, *(str(count) if count else "·" for count in counts))
    yield from (_ms(ms) for ms in (turn.ttft_ms, turn.prefix_ttft_ms, turn.reprefill_ttft_ms))
    yield Text(f"{turn.gain:.1f}x", style="green" if turn.gain >= 1 else "red")
    yield Text(f"{turn.kl:.1g}", style="red" if turn.kl > budget + KL_NOISE else "")
    yield f"{turn.agreement:.0%}"
    yield from (f"{turn.kv_bytes / 1e6:.0f}", f"{turn.patch_bytes / 1e6:.1f}", _ms(turn.idle_ms))


def _ms(ms: float) -> str:
    return f"{ms:.0f} ms"
