"""A diagnosis as one picture: how deep Δ goes, what a rank buys, what a share of the layers buys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentkv.demo.picture import FAINT, INK
from agentkv.diagnose.report import Diagnosis, Figure, Summary
from agentkv.diagnose.summary import FUNCTIONAL
from agentkv.diagnose.terminal import slot_words, title

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

COLOURS = ("#2c7da0", "#f4a259", "#4c956c", "#bc4b51")


def draw(found: Diagnosis, summary: Summary) -> Picture:
    """The picture; `agentkv.demo.picture.require_plot` comes first."""
    from matplotlib.figure import Figure as Picture

    picture = Picture(figsize=(14, 4.6), dpi=150, facecolor="white", layout="constrained")
    panels = picture.subplots(1, 3)
    _profile(panels[0], summary, slot_words(found.model))
    _rank(panels[1], summary)
    _depth(panels[2], summary)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=FAINT, labelsize=8)
        axes.grid(axis="y", color="#e8ecf1", linewidth=0.7)
        axes.set_axisbelow(True)
    picture.suptitle(title(found, summary), color=INK, fontsize=11, x=0.01, ha="left")
    return picture


def _profile(axes: Axes, found: Summary, slots: Mapping[str, str]) -> None:
    for colour, (name, each) in zip(COLOURS, found.profile.items(), strict=False):
        axes.plot(range(len(each)), each, color=colour, label=slots[name])
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
    _words(axes, "‖Δ‖ / ‖KV‖ by layer", "layer")


def _rank(axes: Axes, found: Summary) -> None:
    ranks = sorted(found.eta.rank)
    _band(axes, ranks, [found.eta.rank[rank] for rank in ranks])
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks, [str(rank) for rank in ranks], minor=False)
    axes.axhline(FUNCTIONAL, color=FAINT, linewidth=0.8, linestyle="--")
    _words(axes, "η by rank", "rank of the patch")


def _depth(axes: Axes, found: Summary) -> None:
    names = list(found.eta.depth)
    _band(axes, list(range(len(names))), [found.eta.depth[name] for name in names])
    axes.set_xticks(range(len(names)), names)
    _words(axes, "η by depth, rank 32", "share of the layers that is patched, deepest first")


def _band(axes: Axes, x: Sequence[float], figures: Sequence[Figure]) -> None:
    low, high = [f.low for f in figures], [f.high for f in figures]
    axes.fill_between(x, low, high, color=COLOURS[0], alpha=0.18, linewidth=0)
    axes.plot(x, [f.value for f in figures], color=COLOURS[0], marker="o", markersize=3.5)
    axes.set_ylim(min(0.0, *low), 1.02)


def _words(axes: Axes, title: str, x: str) -> None:
    axes.set_title(title, fontsize=9.5, color=INK, loc="left")
    axes.set_xlabel(x, fontsize=8.5, color=FAINT)
