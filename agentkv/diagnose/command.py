"""What `agentkv diagnose` does: judge the arguments, load, check, measure window by window, write, show."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from agentkv.calibrate import hardware
from agentkv.demo.output import require_writable, write_whole
from agentkv.demo.picture import require_plot
from agentkv.demo.session import counted, quiet, torch_threads
from agentkv.diagnose import documents, gates
from agentkv.diagnose.measure import TRAIN, Texts, measure, sample, train
from agentkv.diagnose.picture import draw
from agentkv.diagnose.probe import Probe
from agentkv.diagnose.report import Diagnosis, Settings, Subject
from agentkv.diagnose.state import resume, save
from agentkv.diagnose.summary import summarise
from agentkv.diagnose.terminal import show
from agentkv.engine import Engine
from agentkv.errors import InvalidInput
from agentkv.models import embedded

FEWEST = 3
"""Chunks in a window: two leave, and one survives."""
Told = Callable[[str, int], object]
"""Hears what is being done, and how many windows are."""


@dataclass(frozen=True)
class Options:
    """What a run is asked for. model: a directory or hub id (None: the embedded one). data: files and folders
    (none: READMEs of installed packages). chunk_tokens: markers included. out: None takes a name that comes
    from the model's."""

    model: str | None = None
    data: tuple[Path, ...] = ()
    windows: int = 8
    chunk_tokens: int = 128
    chunks: int = 5
    seed: int = 0
    threads: int | None = None
    device: str = "cpu"
    out: Path | None = None
    plot: Path | None = None

    @property
    def out_path(self) -> Path:
        return self.out or Path(f"diagnose-{self._model_name()}.json")

    def _model_name(self) -> str:
        name = Path(self.model).expanduser().name if self.model else embedded.NAME
        return re.sub(r"[^\w.-]+", "-", name) or "model"


def diagnose(console: Console, options: Options, as_json: bool = False) -> Diagnosis:
    """Run, and show the figures on ``console``: a table, or the JSON of the run. Progress goes to stderr.

    Ctrl-C leaves the windows that are finished in ``options.out_path``; the same options go on from there.
    Raises BadOutput, MissingExtra, BadText, TooFewDocuments, TooLong, InvalidInput, BrokenState, OtherRun,
    CheckFailed, and what loading a model raises.
    """
    _judge(options)
    aside = Console(stderr=True)
    left = partial(_left_behind, options.out_path)
    with torch_threads(options.threads), counted(aside, options.windows, left) as told:
        found = _run(options, told)
    summary = summarise(found.windows, found.settings.chunk_tokens, found.model.token_bytes)
    if options.plot is not None:
        write_whole(options.plot, lambda path: draw(found, summary).savefig(path))
    if as_json:
        console.file.write(found.model_dump_json() + "\n")
    else:
        show(console, found, summary, options.out_path)
    return found


def _left_behind(path: Path) -> str:
    """What to tell whoever stopped a run."""
    if not path.exists():
        return "No window was finished, nothing was written."
    return f"The windows that are finished are in {path}; the same command goes on from there."


def _judge(options: Options) -> None:
    """All that can be refused before a model is loaded."""
    least = {"windows": 1, "chunks": FEWEST, "chunk_tokens": 1}
    for name, low in least.items():
        if getattr(options, name) < low:
            raise InvalidInput(
                got=f"{name} {getattr(options, name)}",
                expected=f"at least {low}",
                do=f"raise --{name.replace('_', '-')}",
            )
    try:
        torch.empty(0, device=options.device)
    except (RuntimeError, AssertionError) as error:  # a torch without CUDA asserts
        raise InvalidInput(
            got=f"device {options.device!r} ({str(error).splitlines()[0]})",
            expected="a device that torch can use here",
            do="leave --device out for the CPU",
        ) from error
    for path in (options.out_path, options.plot):
        if path is not None:
            require_writable(path)
    if options.plot is not None:
        require_plot(options.plot)


def _run(options: Options, told: Told) -> Diagnosis:
    texts = documents.read(options.data) or list(documents.readmes())
    source = embedded.ensure(lambda line: told(line, 0)) if options.model is None else options.model
    with quiet():
        loaded = Engine.from_pretrained(source, device=options.device)
    with loaded as engine:
        return run(engine, options, texts, told)


def run(
    engine: Engine,
    options: Options,
    texts: Sequence[tuple[str, str]],
    told: Told,
    shown: Texts | None = None,
) -> Diagnosis:
    """All windows that are asked for and not in ``options.out_path`` yet.

    texts: (name, text). shown: how a piece of one becomes a chunk; None shows it as it is. Raises as
    `diagnose` does.
    """
    shape, path = shown or Texts(engine, options.chunk_tokens), options.out_path
    pool = documents.tokenised(shape.encode, texts, shape.body)
    measured, training = documents.split(pool, options.chunks, options.seed)
    found = resume(path, _fresh(engine, options, pool), "agentkv diagnose")
    longest = max(map(len, shape.questions))
    probe = Probe(engine, len(engine.sink) + options.chunks * options.chunk_tokens + longest)
    sizes = (options.chunks, shape.body, options.seed)
    chosen = documents.windows(measured, options.windows, *sizes)

    told("checking", len(found.windows))
    found = found.model_copy(update={"gates": gates.check(sample(probe, shape, chosen[0], 0))})
    if len(found.windows) < options.windows:
        told("pooling a shared basis", len(found.windows))
        basis = train(probe, shape, documents.windows(training, TRAIN, *sizes))
        for index in range(len(found.windows), options.windows):
            told("measuring", index)
            record = measure(sample(probe, shape, chosen[index], index), basis, chosen[index], index)
            found = save(path, found.model_copy(update={"windows": (*found.windows, record)}))
    return found


def _fresh(engine: Engine, options: Options, pool: Sequence[documents.Document]) -> Diagnosis:
    """A run without a window, of this model with these settings."""
    return Diagnosis(
        model=Subject.of(engine),
        settings=Settings(
            chunk_tokens=options.chunk_tokens,
            chunks=options.chunks,
            seed=options.seed,
            device=str(engine.loaded.device),
            threads=torch.get_num_threads(),
            documents=len(pool),
            digest=documents.digest(pool),
        ),
        hardware=hardware(),
    )
