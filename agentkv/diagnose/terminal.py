"""A diagnosis as one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentkv.diagnose.pair import RANK
from agentkv.diagnose.report import Diagnosis, Figure, Subject, Summary

SHOWN = (8, 16, 32, 64)
"""Ranks in the table; the file has them all."""
BLOCKS = "▁▂▃▄▅▆▇█"
Row = tuple[str, str, str]
"""What was measured, and two columns of text."""


def edit_names(chunks: int) -> dict[str, str]:
    """Words for the edits of a window of so many chunks."""
    return {
        "slide_1": f"slide, 1 of {chunks} leaves",
        "slide_2": f"slide, 2 of {chunks} leave",
        "hole": "hole in the middle",
        "reorder": "reorder, all but the last",
        "recall": "recall at the tail",
        "insert": "insertion in front",
    }


def slot_words(model: Subject) -> dict[str, str]:
    """Words for the slots of a layer's cache: a latent model keeps its rope key where others keep values."""
    return {slot.name: f"{slot.name}{', turned' if slot.rotates else ''}" for slot in model.slots}


def sections(found: Summary, chunks: int, slots: Mapping[str, str]) -> Iterator[list[Row]]:
    """The parts of the table; the first row of each is its head. KL in nats, to a re-prefill."""
    eta = found.eta
    yield [
        ("The last chunk, computed alone", "KL", "η"),
        ("noise between two exact ways", kl(found.noise), ""),
        ("blind: canonical + R(δ)", kl(found.blind), ""),
        *((f"patch of rank {r}", kl(found.kl_rank[r]), share(eta.rank[r])) for r in SHOWN),
        *((f"rank {RANK}, deepest layers: {name}", "", share(figure)) for name, figure in eta.depth.items()),
        (f"rank {RANK} in a shared basis", "", share(eta.shared)),
        ("orbit patch, order held out", "", share(eta.orbit)),
    ]
    yield [
        ("Some of its rows made exact", "η, largest ‖Δ‖", "η, any"),
        *(
            (f"{part} % of the tokens", share(eta.oracle[part]), share(eta.random[part]))
            for part in eta.oracle
        ),
    ]
    yield [
        ("Edits", "KL, only rotated", "KL, canonicals"),
        *(
            (words, kl(found.edits[name].keep), kl(found.edits[name].canonical))
            for name, words in edit_names(chunks).items()
        ),
    ]
    yield _structure(found, slots)


def _structure(found: Summary, slots: Mapping[str, str]) -> list[Row]:
    rank = found.functional_rank
    return [
        ("What is missing: Δ", "", ""),
        ("functional rank, η ≥ 0.95", _spread(rank.value, rank.low, rank.high, _rank), ""),
        *(
            (f"components of 90 % of ‖Δ‖², {slots[name]}", number(figure, 0), "")
            for name, figure in found.components.items()
        ),
        *(
            (f"‖Δ‖/‖KV‖ by layer, {slots[name]}", sparkline(each), f"at most {max(each):.2f}")
            for name, each in found.profile.items()
        ),
        (
            f"bytes: chunk, patch of rank {RANK}",
            f"{found.page_bytes:,}",
            f"{found.patch_bytes:,} ({found.patch_bytes / found.page_bytes:.0%})",
        ),
    ]


def title(found: Diagnosis, summary: Summary) -> str:
    settings = found.settings
    return (
        f"{found.model.name}, {found.model.dtype}: {summary.n} windows of {settings.chunks} chunks of "
        f"{settings.chunk_tokens} tokens, 95 % intervals"
    )


def table(found: Diagnosis, summary: Summary) -> Table:
    """All figures."""
    grid = Table(
        title=title(found, summary),
        title_justify="left",
        box=SIMPLE_HEAD,
        show_header=False,
        collapse_padding=True,
    )
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right")
    grid.add_column(justify="right")
    for head, *lines in sections(summary, found.settings.chunks, slot_words(found.model)):
        grid.add_row(*(Text(cell, style="bold") for cell in head))
        for name, *cells in lines:
            grid.add_row(Text(f"  {name}"), *map(Text, cells))
        grid.add_section()
    return grid


def show(console: Console, found: Diagnosis, summary: Summary, out: Path) -> None:
    """The table, and where everything lies."""
    console.print(table(found, summary))
    count = found.settings.threads
    where = f"{found.hardware}, {count} thread{'' if count == 1 else 's'}"
    console.print(f"{len(found.gates)} gates passed. {where}", style="dim", highlight=False)
    console.print(f"All figures: {out}", highlight=False, soft_wrap=True)
    console.print("Costs for the planner: agentkv calibrate", highlight=False)


def sparkline(values: tuple[float, ...], cells: int = 24) -> str:
    """Blocks from 0 to the largest value, layers put together where there are more than ``cells``."""
    count, top = min(cells, len(values)), max(values) or 1.0
    edges = [i * len(values) // count for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    return "".join(BLOCKS[min(len(BLOCKS) - 1, int(m / top * len(BLOCKS)))] for m in means)


def kl(figure: Figure) -> str:
    """Nats with their interval."""
    return _spread(figure.value, figure.low, figure.high, _nats)


def share(figure: Figure) -> str:
    """An η with its interval."""
    return number(figure, 2)


def number(figure: Figure, digits: int) -> str:
    """A figure with its interval."""
    return _spread(figure.value, figure.low, figure.high, lambda x: f"{x:.{digits}f}")


def _nats(x: float) -> str:
    return f"{x:.0e}" if 0 < x < 1e-4 else f"{x:.4f}"


def _rank(rank: int | None) -> str:
    return "beyond" if rank is None else str(rank)


def _spread(value: Any, low: Any, high: Any, text: Callable[[Any], str]) -> str:
    return f"{text(value)} [{text(low)}, {text(high)}]"
