"""What `agentkv demo` does: judge the arguments, load, play with progress, show, write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from agentkv_orchestrator.policy import PolicyName
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from transformers.utils import logging as hf_logging

from agentkv.demo.documents import choose_documents
from agentkv.demo.measure import run_day
from agentkv.demo.output import require_writable, write_whole
from agentkv.demo.picture import draw, require_plot
from agentkv.demo.report import Run, Scene, Turn, to_json
from agentkv.demo.story import QUICK_SIZES, SIZES, STEPS
from agentkv.demo.terminal import live_line, show
from agentkv.engine import Engine
from agentkv.errors import InvalidInput
from agentkv.models import embedded

ANSWER_TOKENS, QUICK_ANSWER_TOKENS = 16, 8


def demo(
    console: Console,
    model: str | None = None,
    policy: PolicyName = "balanced",
    quick: bool = False,
    threads: int | None = None,
    json_path: Path | None = None,
    plot_path: Path | None = None,
) -> Run:
    """Run the demo and show it on ``console``. Output paths are judged before anything is loaded.

    Raises BadOutput, MissingExtra, TooFewDocuments, CheckFailed, and what loading a model raises.
    """
    for path in (json_path, plot_path):
        if path is not None:
            require_writable(path)
    if plot_path is not None:
        require_plot(plot_path)
    with _threads(threads), _progress(console) as progress:
        run = _play(progress, model, policy, quick)
    if json_path is not None:
        write_whole(json_path, lambda path: path.write_text(to_json(run), encoding="utf-8"))
    if plot_path is not None:
        write_whole(plot_path, lambda path: draw(run).savefig(path))
    show(console, run)
    return run


def _play(progress: Progress, model: str | None, policy: PolicyName, quick: bool) -> Run:
    loading = progress.add_task("loading the model", total=None)
    source = embedded.ensure(progress.console.print) if model is None else model
    with _quiet():
        loaded = Engine.from_pretrained(source)
    with loaded as engine:
        library = choose_documents(engine.tokenizer, QUICK_SIZES if quick else SIZES)
        progress.remove_task(loading)
        task = progress.add_task("playing", total=len(STEPS))

        def told(turn: Turn, scene: Scene) -> None:
            progress.console.print(live_line(turn, scene))
            progress.advance(task)

        return run_day(
            engine, policy, library, QUICK_ANSWER_TOKENS if quick else ANSWER_TOKENS, progress=told
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers' own progress bars would run through ours."""
    shown = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            hf_logging.enable_progress_bar()


@contextmanager
def _progress(console: Console) -> Iterator[Progress]:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield progress


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """So many torch threads inside the block; None leaves them alone."""
    if count is not None and count < 1:
        raise InvalidInput(
            got=f"{count} threads", expected="at least 1", do="leave --threads out for torch's choice"
        )
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)
