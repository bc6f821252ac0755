"""What `agentkv demo` does: judge the arguments, load, play with progress, show, write."""

from __future__ import annotations

from pathlib import Path

from agentkv_orchestrator.policy import PolicyName
from rich.console import Console
from rich.progress import Progress

from agentkv.demo.documents import choose_documents
from agentkv.demo.measure import run_day
from agentkv.demo.output import require_writable, write_whole
from agentkv.demo.picture import draw, require_plot
from agentkv.demo.report import Run, Scene, Turn, to_json
from agentkv.demo.session import progress_on, quiet, torch_threads
from agentkv.demo.story import QUICK_SIZES, SIZES, STEPS
from agentkv.demo.terminal import live_line, show
from agentkv.engine import Engine
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
    with torch_threads(threads), progress_on(console) as progress:
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
    with quiet():
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
