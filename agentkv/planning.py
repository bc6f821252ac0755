"""`agentkv plan`: what an edit would cost, from files; no model is loaded."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import TypeVar

from agentkv_orchestrator.bring_back import with_bring_back
from agentkv_orchestrator.check import check
from agentkv_orchestrator.cost import CostTable
from agentkv_orchestrator.diff import Wanted
from agentkv_orchestrator.errors import OrchestratorError
from agentkv_orchestrator.explain import Format, Names, explain
from agentkv_orchestrator.files import read_names, read_residency, read_wanted
from agentkv_orchestrator.placement import arranged
from agentkv_orchestrator.plan import Plan
from agentkv_orchestrator.policy import Policy, PolicyName
from agentkv_orchestrator.residency import FrozenResidency
from agentkv_orchestrator.window import Frame, WindowGraph

from agentkv.errors import InvalidInput

T = TypeVar("T")


def plan_files(
    window: Path,
    want: Path,
    residency: Path | None,
    costs: Path | None,
    policy: Policy,
    max_rows: int | None,
    capacity: int | None,
) -> Plan:
    """The checked plan from the window of one file to the wanted one of another.

    window: as `WindowGraph.to_json` writes it. want: a list of wanted chunks, or a window. residency: what is
    stored (nothing). costs: a calibration file (the shipped one). max_rows: rows and positions that there may
    be (what the plan needs). capacity: rows of the buffer (max_rows). Raises InvalidInput for a file that
    cannot be read, and what the planner raises with the file's name in front.
    """
    graph = read(window, WindowGraph.from_json)
    wanted = read(want, read_wanted)
    held = read(residency, read_residency) if residency else FrozenResidency()
    table = _costs(costs)
    frame, most = room(graph, wanted, max_rows, capacity)
    plan, wanted = arranged(graph, wanted, held, table, policy, frame, most)
    check(plan, graph, wanted, held, most)
    return with_bring_back(plan, graph, wanted, held, table, policy, most)


def policy_of(name: PolicyName, kl_budget: float | None, stash: bool) -> Policy:
    """A policy from the options. Raises InvalidInput for a budget that is none."""
    policy = Policy(name=name, stash=stash)
    if kl_budget is None:
        return policy
    if not 0 <= kl_budget < inf:
        raise InvalidInput(
            got=f"--kl-budget {kl_budget}", expected="nats, at least 0", do="pass a number such as 0.05"
        )
    return policy.model_copy(update={"kl_budget": kl_budget})


def room(
    graph: WindowGraph, wanted: list[Wanted], max_rows: int | None, capacity: int | None
) -> tuple[Frame, int]:
    """The frame that the window stands in, and the rows there may be. Raises InvalidInput when the window
    stands outside of them."""
    first = graph.placements[0] if graph.placements else None
    last = graph.placements[-1] if graph.placements else None
    end = max(last.stop, last.position_stop) if last else 0
    need = max(sum(w.chunk.length for w in wanted), sum(w.chunk.span for w in wanted))
    most = max(end, 1) + need if max_rows is None else max_rows
    rows = most if capacity is None else capacity
    if not end <= rows <= most:
        raise InvalidInput(
            got=f"a buffer of {rows} rows, of {most} that there may be",
            expected=f"at least the {end} rows and positions that the window takes, at most {most}",
            do="raise --max-rows or --capacity",
        )
    return Frame(
        start=first.row if first else 0, capacity=rows, position=first.position if first else 0
    ), most


def show(plan: Plan, fmt: Format, names: Path | None) -> str:
    """The plan written out, with the names of a file."""
    called: Names = read(names, read_names) if names else {}
    return explain(plan, fmt, called)


def read(path: Path, parse: Callable[[str], T]) -> T:
    """A file's text as a value. Raises InvalidInput, or the parser's error with the file's name in front."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(
            got=f"{path}: {error.strerror or error}", expected="a file that can be read", do="check the path"
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidInput(
            got=f"{path}: {error}", expected="JSON in UTF-8", do="write the file as text"
        ) from error
    try:
        return parse(text)
    except OrchestratorError as error:
        raise type(error)(f"{path}: {error.got}", error.expected, error.do) from error


def write(path: Path, text: str) -> None:
    """The whole file or none of it. Raises InvalidInput where it cannot be written."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise InvalidInput(
            got=f"{path}: {error.strerror or error}",
            expected="a place that can be written to",
            do="pass another --out",
        ) from error


def _costs(path: Path | None) -> CostTable:
    return CostTable.shipped() if path is None else read(path, lambda text: CostTable.parse(text, str(path)))
