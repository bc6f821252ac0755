"""The options of `agentkv plan`. Importing this is cheap: the planner comes with the first plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from agentkv_orchestrator.policy import PolicyName


def _file(text: str, name: str) -> Any:
    return typer.Option(name, metavar="FILE", help=text, show_default=False)


def _number(text: str, least: int) -> Any:
    return typer.Option(min=least, help=text, show_default=False)


def plan(
    window: Annotated[Path, _file("The window as it stands, from WindowGraph.to_json.", "--window")],
    want: Annotated[Path, _file("The window to come: a list of wanted chunks, or a window.", "--want")],
    residency: Annotated[Path | None, _file("What is stored (default: nothing).", "--residency")] = None,
    costs: Annotated[
        Path | None, _file("A cost table (default: the one that comes with agentkv).", "--costs")
    ] = None,
    names: Annotated[Path | None, _file("What to call chunks: a JSON object by uid.", "--names")] = None,
    policy: Annotated[
        PolicyName,
        typer.Option(
            help="exact: what a prefix cache gives. balanced: the cheapest plan inside a KL budget. "
            "fast: the cheapest plan."
        ),
    ] = "balanced",
    kl_budget: Annotated[
        float | None,
        typer.Option(help="In nats, next token (default: the policy's own).", show_default=False),
    ] = None,
    stash: Annotated[
        bool, typer.Option("--stash/--no-stash", help="Store exact KV before it is lost.")
    ] = True,
    max_rows: Annotated[
        int | None, _number("Rows and positions there may be (default: what is needed).", 1)
    ] = None,
    capacity: Annotated[int | None, _number("Rows of the buffer as it is (default: --max-rows).", 0)] = None,
    fmt: Annotated[
        Literal["text", "json", "mermaid", "html"],
        typer.Option("--format", help="Text, the plan as JSON, a flowchart, or one page of HTML."),
    ] = "text",
    out: Annotated[Path | None, _file("Write to this file instead of the terminal.", "--out")] = None,
) -> None:
    """Say what an edit of a window would do, at what price and why, without a model.

    Window.export writes the files. Exit code 0: a plan was made. 2: an input is wrong, and one message says
    which.
    """
    from agentkv import planning

    made = planning.plan_files(
        window, want, residency, costs, planning.policy_of(policy, kl_budget, stash), max_rows, capacity
    )
    text = planning.show(made, fmt, names)
    if out is None:
        typer.echo(text)
    else:
        planning.write(out, text)
