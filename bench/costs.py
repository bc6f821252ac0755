"""Write the cost table that the orchestrator ships: ``python -m bench.costs``.

KL figures come from bench/results/quality_smollm2.json, times are measured here on the embedded model.
"""

from __future__ import annotations

import json
from datetime import date
from importlib import resources
from pathlib import Path

import torch
from agentkv_orchestrator.cost import CostTable

from agentkv import Engine
from agentkv.calibrate import Errors, Stale, hardware, times

RESULTS = Path(__file__).parent / "results"


def errors() -> Errors:
    """KL of every window of the quality run, by method."""
    windows = json.loads((RESULTS / "quality_smollm2.json").read_text())["windows"]

    def column(operation: str, arm: str = "keep + R") -> list[float]:
        return [w[operation][arm]["kl"] for w in windows]

    slide = "slide, 1 of 5 leaves"
    return Errors(
        slide=[Stale(0.2, column(slide)), Stale(0.4, column("slide, 2 of 5 leave"))],
        # The two behind the hole are stale, of the four that stay; the four behind an insertion, of five.
        hole=[Stale(0.2, column("hole, the third of 5 leaves"), affected=0.5)],
        inserted=[Stale(0.2, column("an antecedent re-inserted in front"), affected=0.8)],
        permuted=column("a set of three permuted"),
        canonical=column("recall at the tail", "rotate"),
        patch=column("recall at the tail", "energy 32 in bf16 (half the bytes)"),
        orbit=column(
            "three predecessors permuted, the last chunk only", "orbit patch 32, target order held out"
        ),
        removal=column(slide, "keep + R + removal patch 32"),
    )


def main() -> None:
    with Engine.from_pretrained() as engine:
        table = CostTable(
            model="HuggingFaceTB/SmolLM2-135M-Instruct",
            hardware=hardware(),
            threads=torch.get_num_threads(),
            measured_on=date.today().isoformat(),
            note="Written by python -m bench.costs. KL: the ninth decile over windows of five 256-token "
            "documents. load and place_canonical do what rotate does, orbit and removal patches what a patch "
            "does, form_canonical what a prefill does; they share its figures.",
            ms=times(engine),
            kl=errors().table(),
        )
    text = table.model_dump_json(indent=2)
    Path(str(resources.files("agentkv_orchestrator").joinpath("data", "smollm2-135m-cpu.json"))).write_text(
        text + "\n"
    )
    print(text)


if __name__ == "__main__":
    main()
