"""How a command ends that does not end well."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

FAILED, INTERRUPTED = 2, 130
"""Exit codes: an error that was told in one message; Ctrl-C, as a shell reports it."""


@contextmanager
def interruptible(told: str = "interrupted") -> Iterator[None]:
    """Make of Ctrl-C inside the block one message on stderr and the exit code of an interruption."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"agentkv: {told}", err=True)
        raise typer.Exit(INTERRUPTED) from None
