"""Write the cost table that the orchestrator ships: ``python -m bench.costs [--windows N] [--keep-times]``.

It is what `agentkv calibrate` makes of the embedded model and the packages installed here, with the table
that came before as one more baseline. The windows are in bench/results/calibration_smollm2.json; more are
added to those that are there.
"""

from __future__ import annotations

import argparse
from functools import partial
from importlib import resources
from pathlib import Path

import torch
from agentkv_orchestrator.cost import CostTable, Evaluation
from rich.console import Console

from agentkv import Engine
from agentkv.calibrate import fit, judge, texts
from agentkv.calibrate.baselines import BASELINES
from agentkv.calibrate.command import collect, made, save, timed
from agentkv.calibrate.report import Measurements
from agentkv.calibrate.terminal import show
from bench.eval.deciles import Deciles

RUN = Path(__file__).parent / "results" / "calibration_smollm2.json"
TABLE = Path(str(resources.files("agentkv_orchestrator").joinpath("data", "smollm2-135m-cpu.json")))
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--windows", type=int, default=0, help="measure until there are so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="to time with")
    parser.add_argument("--keep-times", action="store_true", help="do not time the ops again")
    args = parser.parse_args()
    with Engine.from_pretrained() as engine:
        if args.windows:
            torch.set_num_threads(1)
            collect(engine, texts.installed(), RUN, args.windows, args.seed, partial(print, flush=True))
        run = Measurements.model_validate_json(RUN.read_bytes())
        if not args.keep_times:
            if args.threads:
                torch.set_num_threads(args.threads)
            run = save(RUN, timed(engine, run))
    table = made(run, {**BASELINES, "ninth deciles": Deciles()})
    table = table.model_copy(update={"model": MODEL, "evaluation": with_deciles(table, run)})
    TABLE.write_text(table.model_dump_json(indent=2) + "\n")
    show(Console(), table, TABLE)


def with_deciles(table: CostTable, run: Measurements) -> Evaluation | None:
    """The evaluation, and how the deciles did without a bound of their own: as plans were made with them."""
    if table.evaluation is None:
        return None
    unseen = fit.rows([w for w in run.windows if w.part == "judge"])
    plain = judge.judged(Deciles()(unseen), 1.0, unseen)
    others = {**table.evaluation.others, "ninth deciles, as they stood": plain}
    return table.evaluation.model_copy(update={"others": others})


if __name__ == "__main__":
    main()
