"""The command line."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from agentkv_orchestrator.errors import OrchestratorError
from agentkv_orchestrator.policy import PolicyName
from rich.console import Console
from rich.table import Table

from agentkv.errors import AgentKVError
from agentkv.exits import FAILED, interruptible
from agentkv.plan_command import plan
from agentkv.simulate import simulate
from agentkv.store_command import app as store_app

if TYPE_CHECKING:
    from agentkv.models.families import Family

ModelOption = Annotated[
    str | None,
    typer.Option(
        metavar="DIR_OR_ID",
        help="A model directory or hub id (default: SmolLM2-135M-Instruct, which comes with agentkv).",
        show_default=False,
    ),
]
ThreadsOption = Annotated[
    int | None, typer.Option(min=1, help="CPU threads (default: torch's choice).", show_default=False)
]
SeedOption = Annotated[int, typer.Option(help="Decides which pieces of text stand in which window.")]
DeviceOption = Annotated[str, typer.Option(help="Where the model runs, as torch calls it.")]

app = typer.Typer(
    name="agentkv",
    help="Agent memory that lives in the KV cache: edit the window instead of prefilling it again.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"agentkv {version('agentkv-window')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    json_path: Annotated[
        Path | None, typer.Option("--json", metavar="PATH", help="Write all numbers to this file.")
    ] = None,
    plot_path: Annotated[
        Path | None,
        typer.Option("--plot", metavar="PATH", help="Draw the window over the day: a .png or .svg file."),
    ] = None,
    model: ModelOption = None,
    policy: Annotated[
        PolicyName,
        typer.Option(
            help="exact: what a prefix cache gives. balanced: the cheapest plan inside a KL budget. "
            "fast: the cheapest plan."
        ),
    ] = "balanced",
    quick: Annotated[bool, typer.Option("--quick", help="Shorter documents and answers.")] = False,
    threads: ThreadsOption = None,
) -> None:
    """Play a day of an agent over real documents.

    The agent reads the READMEs of installed packages; its window slides, drops, recalls, reorders, forks and
    rewinds. Every turn is timed three ways in the same run: agentkv, longest-prefix reuse and re-prefill.
    """
    from agentkv.demo.command import demo as run

    with interruptible("interrupted, nothing was written"):
        run(Console(), model, policy, quick, threads, json_path, plot_path)


@app.command()
def chat(
    model: ModelOption = None,
    policy: Annotated[PolicyName, typer.Option(help="exact, balanced or fast; see demo.")] = "balanced",
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A system message, pinned.", show_default=False)
    ] = None,
    answer_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer at most.")] = 256,
    store: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A store on disk, for /save and --open.", show_default=False),
    ] = None,
    opened: Annotated[
        str | None,
        typer.Option("--open", metavar="NAME", help="Go on with a window that /save put into the store."),
    ] = None,
    threads: ThreadsOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object a turn, nothing else.")
    ] = False,
) -> None:
    """Talk to a model, and watch and edit its window.

    A line is a message; a line that begins with a slash is a command: /list, /evict 3, /recall 3, /read FILE,
    /explain, /audit and others (/help). Lines may come from a pipe.
    """
    from agentkv.chat.command import Options
    from agentkv.chat.command import chat as run

    options = Options(model, policy, system, answer_tokens, store, opened, threads, as_json)
    with interruptible():
        run(Console(), options)


@app.command()
def diagnose(
    model: ModelOption = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH",
            help="A text file, or a folder of them; may be given several times (default: the READMEs of "
            "installed packages).",
            show_default=False,
        ),
    ] = None,
    windows: Annotated[int, typer.Option(min=1, help="Windows to measure.")] = 8,
    chunk_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a chunk.")] = 128,
    chunks: Annotated[int, typer.Option(min=3, help="Chunks of a window.")] = 5,
    seed: SeedOption = 0,
    threads: ThreadsOption = None,
    device: DeviceOption = "cpu",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="The file of the run, written after every window. A run goes on from it "
            "(default: diagnose-MODEL.json).",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the file of the run, not a table.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Draw the figures: a .png or .svg file.")
    ] = None,
) -> None:
    """Measure what reuse costs on your own model and texts.

    Checks first that moving and patching is exact where it has to be; no number is printed when that fails.
    Ctrl-C keeps the windows that are finished, and the same command goes on from there.
    """
    from agentkv.diagnose.command import Options
    from agentkv.diagnose.command import diagnose as run

    options = Options(
        model, tuple(data or ()), windows, chunk_tokens, chunks, seed, threads, device, out, plot
    )
    with interruptible():
        run(Console(), options, as_json)


app.command()(plan)


@app.command()
def calibrate(
    model: ModelOption = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH",
            help="A text file, or a folder of them; may be given several times. Source code, JSON and logs "
            "count as kinds of their own (default: texts of installed packages).",
            show_default=False,
        ),
    ] = None,
    windows: Annotated[int, typer.Option(min=4, help="Windows to measure.")] = 96,
    seed: SeedOption = 0,
    threads: ThreadsOption = None,
    device: DeviceOption = "cpu",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="The calibration, for Engine.from_pretrained(costs=...). Beside it lie the windows it is "
            "made of, from which a run goes on (default: calibration-MODEL.json).",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the calibration, not a table.")] = False,
) -> None:
    """Measure what ops take on this machine and what they cost in KL on your model, for the planner.

    The error model is fitted on some texts, bounded on others and judged on a third part. Ctrl-C keeps the
    windows that are finished, and the same command goes on from there.
    """
    from agentkv.calibrate.command import Options
    from agentkv.calibrate.command import calibrate as run

    with interruptible():
        run(Console(), Options(model, tuple(data or ()), windows, seed, threads, device, out), as_json)


@app.command()
def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the model families: which load, what of their cache turns with the position, and why the others
    do not load.

    exact: turned keys are those of the other position. later: not proven here. refused: cannot be moved.
    """
    from agentkv.models.families import FAMILIES

    if as_json:
        slots = ("content_slot", "rope_slot")
        rows = [asdict(f) | {slot: getattr(f, slot) for slot in slots} for f in FAMILIES.values()]
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table(pad_edge=False)
    for name in ("model type", "status", "attention", "content", "rope band", "also", "reason"):
        table.add_column(name, no_wrap=name == "model type")
    colours = {"exact": "green", "later": "yellow", "refused": "red"}
    for family in FAMILIES.values():
        table.add_row(*_cells(family), style=colours[family.status])
    Console().print(table)


app.command()(simulate)
app.add_typer(store_app)


def _cells(family: Family) -> tuple[str, ...]:
    """One line of `agentkv models`."""
    axes = f"{family.axes} axes ({family.sections})" if family.axes > 1 else ""
    band = ", ".join(filter(None, (family.rope_slot, family.style, axes)))
    also = [
        f"text model: {family.text}" if family.text else "",
        "inside a wrapper" if family.loads == "inside" else "",
        f"no positions: by {family.still}" if family.still else "",
        f"query scale: by {family.query_scale}" if family.query_scale else "",
        *family.traits,
        "images" if family.images else "",
        "tokens of an image see each other both ways" if family.both_ways else "",
    ]
    notes = "; ".join(filter(None, also))
    return (
        family.model_type, family.status, family.attention, family.content_slot, band, notes, family.reason
    )  # fmt: skip


def main() -> None:
    """Run the command line; an error of ours becomes one message on stderr and exit code 2."""
    try:
        app()
    except (AgentKVError, OrchestratorError) as error:
        Console(stderr=True, soft_wrap=True).print(
            f"agentkv: {error}", style="red", markup=False, highlight=False
        )
        sys.exit(FAILED)


if __name__ == "__main__":
    main()
