"""`agentkv diagnose` over the models of the quality tables, to bench/results/diagnose_*.json.

    python -m bench.eval.diagnose --only smollm2 gemma --windows 8 --threads 1

A run that was stopped goes on where it was. "qwen", "qwen_mha" and "qwen_mla" are one model in three forms
(`bench.models.mha`, `bench.models.mla`): what differs between them is the cache.
"""

import argparse
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch

from agentkv import Engine
from agentkv.config import EngineConfig
from agentkv.diagnose import documents
from agentkv.diagnose.command import Options, run
from agentkv.models import embedded, hf
from bench.models import gemma, mha, mla, qwen_coder

RESULTS = Path(__file__).parents[1] / "results"
MODELS: Mapping[str, Callable[[], hf.LoadedModel]] = {
    "smollm2": lambda: hf.load(embedded.ensure()),
    "qwen": lambda: hf.load(qwen_coder.ensure()),
    "qwen_mha": lambda: hf.load(mha.ensure()),
    "qwen_mla": lambda: hf.wrap(*mla.load(), name=mla.NAME),
    "gemma": lambda: hf.load(gemma.ensure()),
}


def main() -> None:
    """Every model named, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=[*MODELS], default=[*MODELS], help="which models")
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(args.threads)
    texts = list(documents.readmes())
    for name in args.only:
        with Engine(MODELS[name](), EngineConfig()) as engine:
            options = Options(windows=args.windows, out=args.out / f"diagnose_{name}.json")
            run(engine, options, texts, partial(say, name))


def say(model: str, what: str, done: int) -> None:
    """A line of progress."""
    print(model, what, done, flush=True)


if __name__ == "__main__":
    main()
