"""What `agentkv calibrate` does: measure window by window, time the ops, fit, judge, write, show."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
import xxhash
from agentkv_orchestrator.cost import CostTable
from rich.console import Console

from agentkv.calibrate import judge, prices, texts, windows
from agentkv.calibrate.baselines import BASELINES
from agentkv.calibrate.measure import Asked, measure
from agentkv.calibrate.report import Measurements, Settings
from agentkv.calibrate.terminal import show
from agentkv.calibrate.texts import Part, Text
from agentkv.demo.output import require_writable, write_whole
from agentkv.demo.session import counted, quiet, torch_threads
from agentkv.diagnose.probe import Probe
from agentkv.diagnose.report import Subject
from agentkv.diagnose.state import resume
from agentkv.engine import Engine
from agentkv.errors import InvalidInput
from agentkv.models import embedded

TURNS: tuple[Part, ...] = ("fit", "judge", "fit", "bound")
"""Which part's sources a window is drawn from, window after window."""
EDITS = 4
"""Edits that are measured of a window."""
QUESTION = 256
"""Rows that are kept free for a question: more than any is long."""
Told = Callable[[str, int], object]
"""Hears what is being done, and how many windows are."""


@dataclass(frozen=True)
class Options:
    """What a run is asked for. model: a directory or hub id (None: the embedded one). data: files and folders
    (none: texts of installed packages). out: the calibration file; None takes a name that comes from the
    model's."""

    model: str | None = None
    data: tuple[Path, ...] = ()
    windows: int = 96
    seed: int = 0
    threads: int | None = None
    device: str = "cpu"
    out: Path | None = None

    @property
    def out_path(self) -> Path:
        name = Path(self.model).expanduser().name if self.model else embedded.NAME
        name = re.sub(r"[^\w.-]+", "-", name) or "model"
        return self.out or Path(f"calibration-{name}.json")

    @property
    def run_path(self) -> Path:
        """The file of the run, beside the calibration."""
        return self.out_path.with_suffix(".windows.json")


def calibrate(console: Console, options: Options, as_json: bool = False) -> CostTable:
    """Run, and show the figures on ``console``: a table, or the JSON of the calibration. Progress to stderr.

    Ctrl-C leaves the windows that are finished in ``options.run_path``; the same options go on from there.
    Raises BadOutput, BadText, TooFewDocuments, InvalidInput, BrokenState, OtherRun, and what loading a model
    raises.
    """
    if options.windows < len(TURNS):
        raise InvalidInput(
            got=f"windows {options.windows}",
            expected=f"at least {len(TURNS)}: to fit on, to bound on and to judge on",
            do="raise --windows",
        )
    for path in (options.out_path, options.run_path):
        require_writable(path)
    left = f"The windows that are finished are in {options.run_path}; the same command goes on there."
    aside = Console(stderr=True)
    with torch_threads(options.threads), counted(aside, options.windows, lambda: left) as told:
        table = _run(options, told)
    if as_json:
        console.file.write(table.model_dump_json() + "\n")
    else:
        show(console, table, options.out_path)
    return table


def _run(options: Options, told: Told) -> CostTable:
    found = texts.read(options.data) or texts.installed()
    source = embedded.ensure(lambda line: told(line, 0)) if options.model is None else options.model
    with quiet():
        loaded = Engine.from_pretrained(source, device=options.device)
    with loaded as engine:
        return run(engine, options, found, told)


def run(engine: Engine, options: Options, found: Sequence[Text], told: Told) -> CostTable:
    """All windows that are asked for and not there yet, times, and the calibration made of them."""
    done = collect(engine, found, options.run_path, options.windows, options.seed, told)
    if done.times is None:
        told("timing", len(done.windows))
        done = save(options.run_path, timed(engine, done))
    table = made(done, BASELINES)
    text = table.model_dump_json(indent=2) + "\n"
    write_whole(options.out_path, lambda scratch: scratch.write_text(text, encoding="utf-8"))
    return table


def timed(engine: Engine, run: Measurements) -> Measurements:
    """The run with the times of this machine."""
    measured = {"times": prices.times(engine), "bytes": prices.sizes(engine)}
    where = {"hardware": prices.hardware(), "threads": torch.get_num_threads()}
    return run.model_copy(update={**measured, **where})


def made(run: Measurements, others: Mapping[str, judge.Predict]) -> CostTable:
    """The calibration of a run whose ops were timed. others: what to compare the error model with.

    Raises InvalidInput for too few windows.
    """
    model, evaluation = judge.calibrated(run.windows, run.settings.rank, others)
    return CostTable(
        model=run.model.name,
        hardware=run.hardware,
        threads=run.threads,
        measured_on=date.today().isoformat(),
        note=f"Written by agentkv calibrate: {len(run.windows)} windows of {run.settings.sources} sources. "
        "load and place_canonical do what rotate does, orbit and removal patches what a patch does, "
        "form_canonical what a prefill does; they share its figures.",
        rank=run.settings.rank,
        ms=run.times or {},
        bytes=run.bytes or {},
        kl=model,
        evaluation=evaluation,
    )


def collect(
    engine: Engine, found: Sequence[Text], path: Path, count: int, seed: int, told: Told
) -> Measurements:
    """Measure windows until there are `count` in the file at `path`, which is written after each."""
    asked = Asked(engine)
    parts = texts.split(found, seed)
    pools = {part: texts.pools(of_part, asked.encode) for part, of_part in parts.items()}
    run = resume(path, fresh(engine, pools, seed), "agentkv calibrate")
    around = (windows.CHUNKS[1] + 1) * asked.around
    probe = Probe(engine, len(engine.sink) + windows.MOST_TOKENS + windows.SIZES[-1] + around + QUESTION)
    for index in range(len(run.windows), count):
        told("measuring", index)
        part, name = TURNS[index % len(TURNS)], f"{seed}:{index}"
        drawn = windows.draw(pools[part], random.Random(name), EDITS)
        record = measure(probe, asked, drawn, part, name)
        run = save(path, run.model_copy(update={"windows": (*run.windows, record)}))
    return run


def fresh(engine: Engine, pools: dict[Part, list[texts.Pool]], seed: int) -> Measurements:
    """A run without a window, of this model over these texts."""
    tokens = sorted(
        (part, pool.kind, *item) for part in pools for pool in pools[part] for item in pool.ids.items()
    )
    return Measurements(
        model=Subject.of(engine),
        settings=Settings(
            seed=seed,
            edits=EDITS,
            rank=engine.config.patch_rank,
            device=str(engine.loaded.device),
            sources=len({source for _, _, source, _ in tokens}),
            digest=xxhash.xxh3_128(repr(tokens).encode()).hexdigest(),
        ),
    )


def save(path: Path, run: Measurements) -> Measurements:
    """Write the run; returns it. Raises BadOutput."""
    write_whole(path, lambda scratch: scratch.write_text(run.model_dump_json() + "\n", encoding="utf-8"))
    return run
