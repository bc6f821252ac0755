"""What surrounds a run in a terminal: its progress bar, and settings that are put back behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
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

from agentkv.errors import InvalidInput


@contextmanager
def quiet() -> Iterator[None]:
    """transformers' own progress bars would run through ours."""
    shown = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            hf_logging.enable_progress_bar()


@contextmanager
def progress_on(console: Console) -> Iterator[Progress]:
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
def counted(aside: Console, total: int, left: Callable[[], str]) -> Iterator[Callable[[str, int], None]]:
    """A bar over ``total`` steps; what the block gets takes what is being done and how many steps are.

    left: what Ctrl-C has left behind, told on ``aside`` before it goes on its way.
    """
    with progress_on(aside) as progress:
        task = progress.add_task("loading the model", total=total)

        def told(what: str, done: int) -> None:
            progress.update(task, description=what, completed=done)

        try:
            yield told
        except KeyboardInterrupt:
            aside.print(left(), highlight=False, soft_wrap=True)
            raise


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
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
