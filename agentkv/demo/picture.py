"""The window over the day as one picture: a row per turn, what became of every token, and the three times."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

from agentkv_orchestrator.explain.words import COLOURS

from agentkv.demo.errors import BadOutput, MissingExtra
from agentkv.demo.report import KL_NOISE, Run, Segment, Status, setting, verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FATES: dict[Status, tuple[str, str]] = {
    "reused": (COLOURS["reused"], "left in place"),
    "rotated": (COLOURS["rotated"], "moved by rotation"),
    "patched": (COLOURS["patched"], "brought from the store"),
    "recomputed": (COLOURS["recomputed"], "recomputed"),
    "decoded": ("#8d99ae", "the answer, decoded"),
}
"""Colour and words for what happened to tokens."""
ARMS = (
    ("ttft_ms", "agentkv", "#1d3557"),
    ("prefix_ttft_ms", "longest-prefix reuse", "#a8b3c4"),
    ("reprefill_ttft_ms", "re-prefill", "#d9dee6"),
)
SUFFIXES = (".png", ".svg")
INK, FAINT = "#22303f", "#76839a"
LETTERS = 1150
"""Letters of one point that stand side by side in the widest strip."""
BAR = 0.5
"""Height of a window's strip; rows are one apart, and the rest shows where things went."""


class Box(NamedTuple):
    """A segment in its row: [x, x + tokens)."""

    x: int
    segment: Segment


def require_plot(path: Path) -> None:
    """Raises MissingExtra without matplotlib and BadOutput for a suffix that is neither PNG nor SVG."""
    if find_spec("matplotlib") is None:
        raise MissingExtra(
            got="no matplotlib in this environment",
            expected="the extra 'plot'",
            do="install it (pip install 'agentkv-window[plot]') or leave --plot out",
        )
    if path.suffix.lower() not in SUFFIXES:
        raise BadOutput(
            got=f"a picture called {path.name!r}",
            expected=f"a name that ends in {' or '.join(SUFFIXES)}",
            do="give it another suffix",
        )


def draw(run: Run) -> Figure:
    """The picture. Raises MissingExtra without matplotlib."""
    require_plot(Path("picture.png"))
    from matplotlib.figure import Figure

    rows = [boxes(scene.segments) for scene in run.scenes]
    figure = Figure(figsize=(16, 1.9 + 0.62 * len(rows)), dpi=150, facecolor="white")
    grid = figure.add_gridspec(1, 2, width_ratios=(11, 3.4), wspace=0.03, left=0.17, right=0.975)
    window, times = figure.add_subplot(grid[0]), figure.add_subplot(grid[1])
    _ribbons(window, rows)
    _strips(window, rows)
    _labels(window, run)
    _times(times, run)
    for axes in (window, times):
        axes.set_ylim(len(rows) - 0.4, -0.62)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, colors=FAINT, labelsize=8)
    _words(figure, run)
    return figure


def boxes(segments: Sequence[Segment]) -> list[Box]:
    """Segments side by side, from 0 on."""
    placed, x = [], 0
    for segment in segments:
        placed.append(Box(x, segment))
        x += segment.tokens
    return placed


def extents(row: Sequence[Box]) -> dict[str, tuple[int, int]]:
    """Where each message stands: [start, stop) by its key, all parts together."""
    found: dict[str, tuple[int, int]] = {}
    for box in row:
        start, _ = found.get(box.segment.key, (box.x, 0))
        found[box.segment.key] = (start, box.x + box.segment.tokens)
    return found


def _ribbons(axes: Axes, rows: Sequence[Sequence[Box]]) -> None:
    """Bands from where a message stood to where it stands next turn; crossings show well."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    moves = (Outline.CURVE4,) * 3
    for y, (above, below) in enumerate(pairwise(rows)):
        seen = extents(above)
        top, bottom, middle = y + BAR / 2, y + 1 - BAR / 2, y + 0.5
        for key, (a, b) in extents(below).items():
            if key not in seen:
                continue
            (c, d), crossed = seen[key], seen[key] != (a, b)
            down = [(c, top), (c, middle), (a, middle), (a, bottom)]
            up = [(b, bottom), (b, middle), (d, middle), (d, top)]
            codes = [Outline.MOVETO, *moves, Outline.LINETO, *moves]
            colour, alpha = (FATES["rotated"][0], 0.20) if crossed else ("#9aa5b5", 0.13)
            outline = Outline([*down, *up], codes)
            axes.add_patch(PathPatch(outline, facecolor=colour, alpha=alpha, linewidth=0))


def _strips(axes: Axes, rows: Sequence[Sequence[Box]]) -> None:
    from matplotlib.patches import Rectangle

    widest = max(row[-1].x + row[-1].segment.tokens for row in rows)
    for y, row in enumerate(rows):
        for x, segment in row:
            colour = FATES[segment.status][0]
            axes.add_patch(Rectangle((x, y - BAR / 2), segment.tokens, BAR, facecolor=colour, linewidth=0))
        names = {box.segment.key: box.segment.name for box in row}
        for key, (a, b) in extents(row).items():
            axes.plot([b, b], [y - BAR / 2, y + BAR / 2], color="white", linewidth=1.3, solid_capstyle="butt")
            _name(axes, names[key], (a + b) / 2, y, (b - a) / widest)
    axes.set_xlim(-widest * 0.003, widest * 1.005)


def _name(axes: Axes, name: str, x: float, y: float, share: float) -> None:
    """The message's name where it fits: whole, smaller, or enough of its first letters."""
    size = next((points for points in (7.5, 6.5) if len(name) <= share * LETTERS / points), 6.5)
    room = int(share * LETTERS / size)
    text = name if len(name) <= room else name[: max(0, room - 1)].rstrip("-_") + "…"
    if len(text) == len(name) or room >= 5:
        axes.text(x, y, text, ha="center", va="center", color="white", fontsize=size, clip_on=True)


def _labels(axes: Axes, run: Run) -> None:
    """What happened, in front of each strip; a KL over the budget is red."""
    axes.set_yticks([])
    place: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center"}
    for y, (turn, scene) in enumerate(zip(run.turns, run.scenes, strict=True)):
        over = turn.kl > run.budget + KL_NOISE
        note = f"{turn.prompt_tokens:,} tokens, KL {turn.kl:.2g}"
        axes.text(-0.205, y, str(turn.turn), fontsize=10, color=FAINT, **place)
        axes.text(-0.178, y - 0.09, scene.event, fontsize=9.2, color=INK, **place)
        axes.text(
            -0.178, y + 0.17, note, fontsize=7.2, color=FATES["recomputed"][0] if over else FAINT, **place
        )
    axes.xaxis.set_ticks_position("top")
    axes.set_title("tokens of the window, in order", fontsize=9, color=FAINT, loc="left", pad=6)


def _times(axes: Axes, run: Run) -> None:
    """Three bars a turn on one axis, with how many times sooner agentkv was than the faster other one."""
    height = BAR / 3
    longest = max(max(getattr(turn, field) for field, _, _ in ARMS) for turn in run.turns) / 1e3
    for y, turn in enumerate(run.turns):
        for i, (field, _, colour) in enumerate(ARMS):
            seconds = getattr(turn, field) / 1e3
            axes.barh(y + (i - 1) * height, seconds, height=height * 0.86, color=colour)
        axes.text(
            turn.ttft_ms / 1e3 + longest * 0.015,
            y - height,
            f"{turn.ttft_ms / 1e3:.2f} s  {turn.gain:.1f}×",
            va="center",
            fontsize=7,
            color=INK if turn.gain >= 1 else FATES["recomputed"][0],
            fontweight="bold",
        )
    axes.set_xlim(0, longest * 1.02)
    axes.set_yticks([])
    axes.xaxis.set_ticks_position("top")
    axes.set_title("seconds to the first token", fontsize=9, color=FAINT, loc="left", pad=6)
    axes.grid(axis="x", color="#e8ecf1", linewidth=0.7)
    axes.set_axisbelow(True)


def _words(figure: Figure, run: Run) -> None:
    """Title, verdict and legends."""
    tall = figure.get_figheight()
    figure.subplots_adjust(top=1 - 1.45 / tall, bottom=0.42 / tall)
    place: dict[str, Any] = {"va": "center", "color": INK}
    figure.text(0.017, 1 - 0.34 / tall, "A day of an agent, and its window", fontsize=17, **place)
    figure.text(0.017, 1 - 0.77 / tall, fill(verdict(run), 210), fontsize=9, linespacing=1.5, **place)
    figure.text(0.975, 1 - 0.34 / tall, setting(run), fontsize=8, ha="right", **place | {"color": FAINT})
    present = {segment.status for scene in run.scenes for segment in scene.segments}
    _legend(figure, [pair for status, pair in FATES.items() if status in present], 0.17, 0.2 / tall)
    _legend(figure, [(colour, name) for _, name, colour in ARMS], 0.785, 0.2 / tall)


def _legend(figure: Figure, entries: Sequence[tuple[str, str]], x: float, y: float) -> None:
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(facecolor=colour, label=words) for colour, words in entries]
    figure.add_artist(
        figure.legend(
            handles=handles,
            loc="center left",
            bbox_to_anchor=(x, y),
            ncols=len(handles),
            frameon=False,
            fontsize=8,
            labelcolor=INK,
            handlelength=1.1,
            handleheight=1.0,
            columnspacing=1.3,
            borderaxespad=0,
            borderpad=0,
        )
    )
