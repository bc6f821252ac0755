"""A diagnosis as one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentkv.diagnose.pair import RANK
from agentkv.diagnose.report import Diagnosis, Figure, Rank, Summary

SHOWN = (8, 16, 32, 64)
"""Ranks in the table; the file has them all."""
BLOCKS = "▁▂▃▄▅▆▇█"
Row = tuple[str, str, str]
"""What was measured, KL in nats, η; all as text."""


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


def rows(found: Summary, chunks: int) -> Iterator[tuple[str, list[Row]]]:
    """The table's sections with their rows."""
    eta = found.eta
    yield (
        "last chunk, computed without the others",
        [
            ("noise: two exact ways to compute the same", _kl(found.noise), ""),
            ("blind: canonical + R(δ)", _kl(found.blind), ""),
            *((f"patch of rank {rank}", _kl(found.kl_rank[rank]), _share(eta.rank[rank])) for rank in SHOWN),
            *(
                (f"rank {RANK}, deepest {name} of the layers", "", _share(eta.depth[name]))
                for name in eta.depth
            ),
            (f"rank {RANK} in a shared basis", "", _share(eta.shared)),
            ("orbit patch, in an order it has not seen", "", _share(eta.orbit)),
        ],
    )
    yield (
        "exact rows for some tokens: those with the largest ‖Δ‖ / any",
        [
            (f"{share} % of the tokens", "", f"{_share(eta.oracle[share])} / {_share(eta.random[share])}")
            for share in eta.oracle
        ],
    )
    yield (
        "edits: survivors only turned / touched ones replaced by canonicals",
        [
            (words, f"{_kl(found.edits[name].keep)} / {_kl(found.edits[name].canonical)}", "")
            for name, words in edit_names(chunks).items()
        ],
    )
    yield "structure of Δ", _structure(found)


def _structure(found: Summary) -> list[Row]:
    share = found.patch_bytes / found.page_bytes
    return [
        ("functional rank, η ≥ 0.95", _rank(found.functional_rank), ""),
        *(
            (f"components that hold 90 % of ‖Δ‖², {name}", _number(figure, 0), "")
            for name, figure in found.components.items()
        ),
        *(
            (f"‖Δ‖/‖KV‖ by layer, {name}", f"{sparkline(each)} {max(each):.2f} at most", "")
            for name, each in found.profile.items()
        ),
        (
            f"bytes of a chunk / its patch of rank {RANK}",
            f"{found.page_bytes:,} / {found.patch_bytes:,} ({share:.0%})",
            "",
        ),
    ]


def table(found: Diagnosis, summary: Summary) -> Table:
    """All figures."""
    settings = found.settings
    grid = Table(
        title=f"{found.model.name}, {found.model.dtype}: {summary.n} windows of {settings.chunks} chunks of "
        f"{settings.chunk_tokens} tokens",
        title_justify="left",
        box=SIMPLE_HEAD,
        collapse_padding=True,
    )
    grid.add_column("", no_wrap=True)
    grid.add_column("KL to re-prefill, nats [95 %]", justify="right")
    grid.add_column("η [95 %]", justify="right")
    for section, lines in rows(summary, settings.chunks):
        grid.add_row(Text(section, style="bold"))
        for name, *cells in lines:
            grid.add_row(f"  {name}", *cells)
        grid.add_section()
    return grid


def show(console: Console, found: Diagnosis, summary: Summary, out: Path, calibration: Path) -> None:
    """The table, where everything lies, and how to use the cost table."""
    console.print(table(found, summary))
    gates = len(found.gates)
    console.print(f"{gates} gates passed; {found.hardware}, {found.settings.threads} threads", style="dim")
    console.print(f"All figures: {out}", highlight=False, soft_wrap=True)
    console.print(
        f"Cost table for the planner: {calibration}\n"
        "  from agentkv_orchestrator.cost import CostTable\n"
        f"  Engine.from_pretrained(..., costs=CostTable.load(Path({str(calibration)!r})))",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def sparkline(values: tuple[float, ...], cells: int = 24) -> str:
    """Blocks from 0 to the largest value, layers put together where there are more than ``cells``."""
    count, top = min(cells, len(values)), max(values) or 1.0
    edges = [i * len(values) // count for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    return "".join(BLOCKS[min(len(BLOCKS) - 1, int(m / top * len(BLOCKS)))] for m in means)


def _kl(figure: Figure) -> str:
    return _spread(figure, lambda x: f"{x:.1e}" if 0 < x < 1e-4 else f"{x:.4f}")


def _share(figure: Figure) -> str:
    return _number(figure, 2)


def _number(figure: Figure, digits: int) -> str:
    return _spread(figure, lambda x: f"{x:.{digits}f}")


def _spread(figure: Figure, text: Callable[[float], str]) -> str:
    return rf"{text(figure.value)} \[{text(figure.low)}, {text(figure.high)}]"


def _rank(found: Rank) -> str:
    beyond = "none tried"
    value, low, high = (beyond if x is None else str(x) for x in (found.value, found.low, found.high))
    return rf"{value} \[{low}, {high}]"
