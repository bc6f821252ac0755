"""A calibration as tables in a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agentkv_orchestrator.cost import CostTable, Figure, Judged
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from agentkv.calibrate.arms import RANKS

LENGTHS = (128, 1024)
"""Tokens of the chunks that prices are shown for."""


def show(console: Console, table: CostTable, out: Path) -> None:
    """Errors and how far they can be trusted, prices, and where the file lies."""
    console.print(_table("Errors on texts that were not used for the fit, 95 % intervals", *trust(table)))
    console.print(_table("Expected KL of a whole window, and the factor of the bound", *errors(table)))
    console.print(_table("Milliseconds and megabytes per op", *prices(table)))
    console.print(f"{table.hardware}, {table.threads} threads", style="dim", highlight=False)
    console.print(
        f"Calibration: {out}\n"
        "  from agentkv_orchestrator.cost import CostTable\n"
        f"  Engine.from_pretrained(..., costs=CostTable.load(Path({str(out)!r})))",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


Rows = tuple[list[str], list[list[str]]]
"""A head, and lines."""


def trust(table: CostTable) -> Rows:
    """How predictions did: ours first, then simpler ones."""
    found = table.evaluation
    if found is None:
        return ["prediction"], []
    named = {"fitted": found.model, **found.others}
    head = ["prediction", "rank correlation", f"coverage of {table.kl.level:.0%}", "bound / measured"]
    return head, [[name, *_judged(each)] for name, each in named.items()]


def errors(table: CostTable) -> Rows:
    """The parameters of the error model."""
    kl = table.kl
    curves = {"slide": kl.slide, "hole": kl.hole, "inserted": kl.inserted, "recalled": kl.recalled}
    lines = [[name, f"{c.scale:.2g} · share^{c.power:.2f}"] for name, c in curves.items()]
    plain = ("reordered", "canonical", "patch", "orbit")
    lines += [[name, f"{getattr(kl, name):.2g}"] for name in plain]
    lines.append(["removal", f"{kl.removal:.2f} of what is stale"])
    lines.append(["rank r", f"patch · (r / {kl.rank})^-{kl.rank_power:.2f}"])
    lines.append(["first in the window, not computed there", f"{kl.first:.2g}"])
    lines.append(["weight by distance to the question", f"1 / ({kl.near:.1f} tokens + distance)"])
    lines += [[f"kind: {name}", f"× {factor:.2f}"] for name, factor in kl.kinds.items()]
    return ["", "KL"], [*lines, ["bound", f"× {kl.bound:.2f}"]]


def prices(table: CostTable) -> Rows:
    """What every op takes, by length; patches at several ranks."""
    head = ["op", *(f"{n} tokens" for n in LENGTHS)]
    return head, [[name, *(_price(table, op, rank, n) for n in LENGTHS)] for name, op, rank in _ops(table)]


def _ops(table: CostTable) -> Iterator[tuple[str, str, int]]:
    for op, time in table.ms.items():
        if time.per_rank or time.per_token_rank:
            yield from ((f"{op}, rank {rank}", op, rank) for rank in RANKS)
        else:
            yield op, op, table.rank


def _price(table: CostTable, op: str, rank: int, tokens: int) -> str:
    ranked = table.at_rank(rank)
    ms = ranked.time(op, tokens)  # type: ignore[arg-type]
    return f"{ms:.2f} ms, {ranked.moved(op, tokens) / 1e6:.2f} MB"  # type: ignore[arg-type]


def _judged(found: Judged) -> list[str]:
    return [_figure(found.rank_correlation), _figure(found.coverage), _figure(found.slack)]


def _figure(figure: Figure) -> str:
    return f"{figure.value:.2f} [{figure.low:.2f}, {figure.high:.2f}]"


def _table(title: str, head: list[str], lines: list[list[str]]) -> Table:
    grid = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for name in head:
        grid.add_column(name, no_wrap=True)
    for line in lines:
        grid.add_row(*line)
    return grid
