"""What `agentkv simulate` does: read or generate a trace, replay it, show what each arm would have cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from agentkv_orchestrator.eviction import EvictorName
from agentkv_orchestrator.policy import Policy
from rich.console import Console
from rich.table import Table

from agentkv.demo.output import write_whole
from agentkv.errors import InvalidInput
from agentkv.exits import interruptible

if TYPE_CHECKING:
    from agentkv_orchestrator.simulate import Options, Report
    from agentkv_orchestrator.trace import Trace


def _file_option(words: str) -> Any:
    return typer.Option(metavar="FILE", help=words, show_default=False)


def simulate(
    trace: Annotated[
        str | None,
        typer.Argument(metavar="TRACE|GENERATOR", help="A file of JSON lines, or a generated loop."),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the generated loops and the arms.")] = False,
    turns: Annotated[int, typer.Option(min=1, help="Turns of a generated loop.")] = 100,
    seed: Annotated[int, typer.Option(help="Of a generated loop.")] = 0,
    arm: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this arm; may be given several times.", show_default=False),
    ] = None,
    evictor: Annotated[EvictorName, typer.Option(help="Who leaves a full store of agentkv.")] = "benefit",
    store_bytes: Annotated[int, typer.Option(min=1, help="Budget of the store, shared by all windows.")] = 2
    << 30,
    kl_budget: Annotated[float, typer.Option(min=0, help="Of balanced, in nats.")] = Policy().kl_budget,
    place: Annotated[bool, typer.Option(help="Choose the order of order-free messages.")] = True,
    settle: Annotated[bool, typer.Option(help="Form patches between turns.")] = True,
    costs: Annotated[Path | None, _file_option("A cost table (default: the embedded model's).")] = None,
    shape: Annotated[Path | None, _file_option("Shape of a cache (default: the embedded model's).")] = None,
    write: Annotated[Path | None, _file_option("Write the trace to this file as well.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
) -> None:
    """Replay an agent's trace through planner and store, without a model.

    Prints hit rate, time, KL and bytes of agentkv's policies beside re-prefill, a prefix cache, llama.cpp's
    cache reuse and an agentkv that knows the future. Times and KL are predicted by the cost table.
    """
    if listed:
        _list()
        return
    if trace is None:
        raise InvalidInput(
            got="no trace", expected="a file or a generated loop", do="see agentkv simulate --list"
        )
    with interruptible():
        options = _options(costs, shape, store_bytes, kl_budget, evictor, place, settle)
        report = _replayed(_trace(trace, turns, seed, write), options, arm)
    if as_json:
        typer.echo(report.model_dump_json(indent=2))
    else:
        _show(report)


def _options(costs: Path | None, shape: Path | None, *rest: Any) -> Options:
    from agentkv_orchestrator.cost import CostTable
    from agentkv_orchestrator.simulate import Options
    from agentkv_orchestrator.simulation.shape import Shape

    return Options(
        CostTable.load(_file(costs)) if costs else CostTable.shipped(),
        Shape.load(_file(shape)) if shape else Shape.shipped(),
        *rest,
    )


def _replayed(trace: Trace, options: Options, arms: list[str] | None) -> Report:
    from agentkv_orchestrator.simulate import ARMS, simulate

    with Console(stderr=True).status("replaying") as status:
        return simulate(trace, options, arms or tuple(ARMS), lambda name: status.update(f"replaying {name}"))


def _list() -> None:
    from agentkv_orchestrator.simulate import ARMS
    from agentkv_orchestrator.traces import GENERATORS

    table = Table("loop", "what it does", pad_edge=False)
    for name, generator in GENERATORS.items():
        table.add_row(name, " ".join((generator.__doc__ or "").split()))
    Console().print(table)
    typer.echo("arms: " + ", ".join(ARMS))


def _trace(name: str, turns: int, seed: int, write: Path | None) -> Trace:
    """A file where there is one of this name, a generated loop otherwise; kept in the file `write`."""
    from agentkv_orchestrator.trace import load, save
    from agentkv_orchestrator.traces import generate

    path = Path(name)
    trace = load(path) if path.exists() or path.suffix else generate(name, turns, seed)
    if write is not None:
        write_whole(write, lambda scratch: save(trace, scratch))
    return trace


def _file(path: Path) -> Path:
    if not path.is_file():
        raise InvalidInput(got=f"{str(path)!r}", expected="a JSON file", do="check the path")
    return path


def _show(report: Report) -> None:
    title = (
        f"{report.trace}: {report.turns} turns, {report.chunk_events} chunk events, {report.tokens} tokens"
    )
    table = Table(title=title, pad_edge=False)
    table.add_column("arm", no_wrap=True)
    for name in ("hits", "s", "idle s", "KL", "store MiB", "regret"):
        table.add_column(name, justify="right", no_wrap=True)
    for arm in report.arms:
        table.add_row(
            arm.arm,
            f"{arm.hit_rate:.1%}",
            f"{arm.ms / 1e3:.2f}",
            f"{arm.idle_ms / 1e3:.2f}",
            f"{arm.kl_mean:.4f}",
            f"{arm.store_peak_bytes / (1 << 20):.0f}",
            "" if arm.regret is None else f"{arm.regret:+.1%}",
        )
    Console().print(table)
    typer.echo(f"No plan takes less than {report.bound_ms / 1e3:.2f} s. Predicted for {report.costs}.")
