"""What `python -m bench.eval.diagnose` wrote, as table rows: a row per model, figures with 95 % intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from agentkv.diagnose.pair import DEPTHS, SUBSETS
from agentkv.diagnose.report import Diagnosis, Summary
from agentkv.diagnose.terminal import SHOWN, edit_names, kl, number, share

RESULTS = Path(__file__).parents[1] / "results"
ORDER = ("smollm2", "gemma", "qwen", "qwen_mha", "qwen_mla", "qwen_screens")
Table = tuple[list[str], list[list[str]]]


def measured() -> Iterator[tuple[Diagnosis, Summary]]:
    """Every diagnosis that is there."""
    for name in ORDER:
        path = RESULTS / f"diagnose_{name}.json"
        if path.exists():
            found = Diagnosis.model_validate_json(path.read_bytes())
            if found.summary is not None:
                yield found, found.summary


def repair() -> Table:
    """Blind KL, η by rank, and what a patch takes."""
    header = ["model", "cache", "n", "blind KL", *(f"η, rank {r}" for r in SHOWN), "functional rank", "bytes"]
    return header, _rows(
        lambda found, summary: [
            cache(found),
            str(summary.n),
            kl(summary.blind),
            *(share(summary.eta.rank[rank]) for rank in SHOWN),
            _rank(summary),
            f"{summary.patch_bytes / summary.page_bytes:.0%}",
        ]
    )


def depth() -> Table:
    """η of patches in the deepest layers, in a shared basis, and over orders."""
    header = ["model", *(f"deepest {name}" for name in DEPTHS), "shared basis", "orbit"]
    return header, _rows(
        lambda found, summary: [
            *(share(summary.eta.depth[name]) for name in DEPTHS),
            share(summary.eta.shared),
            share(summary.eta.orbit),
        ]
    )


def tokens() -> Table:
    """η when some rows are exact: those with the largest ‖Δ‖, and any."""
    header = ["model", *(f"{part} %, {which}" for part in SUBSETS for which in ("largest ‖Δ‖", "any"))]
    return header, _rows(
        lambda found, summary: [
            share(figures[part]) for part in SUBSETS for figures in (summary.eta.oracle, summary.eta.random)
        ]
    )


def edits() -> Table:
    """KL of every edit when survivors are only rotated."""
    names = edit_names(5)
    return ["model", *names.values()], _rows(
        lambda found, summary: [kl(summary.edits[name].keep) for name in names]
    )


def structure() -> Table:
    """Components of 90 % of ‖Δ‖² and ‖Δ‖/‖KV‖, by slot."""
    header = ["model", "slot", "components of 90 %", "‖Δ‖/‖KV‖: a quarter deep", "half", "deepest"]
    rows = []
    for found, summary in measured():
        for slot in found.model.slots:
            each = summary.profile[slot.name]
            places = (len(each) // 4, len(each) // 2, len(each) - 1)
            rows.append(
                [
                    found.model.name,
                    f"{slot.name}, {slot.heads} × {slot.dim}{', turned' if slot.rotates else ''}",
                    number(summary.components[slot.name], 0),
                    *(f"{each[place]:.2f}" for place in places),
                ]
            )
    return header, rows


def cache(found: Diagnosis) -> str:
    """The slots of a layer, heads × dims."""
    return ", ".join(f"{slot.heads} × {slot.dim}" for slot in found.model.slots)


def _rows(cells: Callable[[Diagnosis, Summary], list[str]]) -> list[list[str]]:
    return [[found.model.name, *cells(found, summary)] for found, summary in measured()]


def _rank(summary: Summary) -> str:
    rank = summary.functional_rank
    value, low, high = ("beyond" if x is None else str(x) for x in (rank.value, rank.low, rank.high))
    return f"{value} [{low}, {high}]"
