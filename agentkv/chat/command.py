"""`agentkv chat`: lines in, answers and windows out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from agentkv import Engine, Window
from agentkv.chat.session import Session
from agentkv.store.disk import DiskStore


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    model: str | None
    policy: str
    system: str | None
    answer_tokens: int
    store: Path | None
    opened: str | None
    threads: int | None
    as_json: bool


def chat(console: Console, options: Options) -> None:
    """Read lines until their end. Raises what loading the model, the store or a saved window raises."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    store = DiskStore(options.store) if options.store is not None else None
    try:
        with Engine.from_pretrained(options.model, store=store) as engine:
            window = _window(engine, options)
            session = Session(console, window, options.answer_tokens, options.as_json)
            for line in _lines(console, options.as_json):
                session.line(line)
                if session.over:
                    break
    finally:
        if store is not None:
            store.close()


def _window(engine: Engine, options: Options) -> Window:
    if options.opened is not None:
        return engine.open(options.opened)
    window = engine.window(options.policy)
    if options.system:
        window.append(options.system, kind="system", pin=True)
    return window


def _lines(console: Console, quiet: bool) -> Iterator[str]:
    """Lines as they are typed, or of a pipe."""
    if not sys.stdin.isatty():
        yield from (line.rstrip("\n") for line in sys.stdin)
        return
    if not quiet:
        console.print("Type to talk; /help lists the commands, /quit ends.", style="dim")
    while True:
        try:
            yield console.input("[bold]› [/bold]")
        except EOFError:
            return
