"""``python -m bench.eval.headers``: reuse below a header that changes, audited: predicted KL, true KL.

The embedded model reads documents below a line of metadata of another length each turn. Every policy is
handed the same prompts; after each, its window is compared with a re-prefill.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from agentkv_orchestrator.plan import Prefill

from agentkv import Engine
from agentkv.calibrate import hardware
from agentkv.diagnose.documents import readmes
from agentkv.inputs import Ids
from bench.traces.generated import header

RESULT = Path(__file__).parents[1] / "results" / "headers.json"
POLICIES = ("exact", "balanced", "fast")
QUESTION = "\nIn short, the first text is about"


def prompts(engine: Engine, documents: list[str], turns: int) -> list[tuple[Ids, list[int]]]:
    """(ids, boundaries) of every turn."""
    rng, made = random.Random(0), []
    for turn in range(turns):
        texts = [header(rng, "agent", turn), *(f"\n{text}" for text in documents), QUESTION]
        parts = [np.array(engine.tokenizer(text)["input_ids"], dtype=np.int64) for text in texts]
        made.append((np.concatenate(parts), np.cumsum([len(p) for p in parts])[:-1].tolist()))
    return made


def measure(policy: str, documents: list[str], turns: int) -> list[dict[str, Any]]:
    """A row a turn but for the first, whose window is computed."""
    rows = []
    with Engine.from_pretrained() as engine:
        window = engine.window(policy)
        for turn, (ids, edges) in enumerate(prompts(engine, documents, turns)):
            window.set_prompt(ids, edges)
            plan = window.commit()
            if turn == 0:
                continue
            rows.append(
                {
                    "policy": policy,
                    "turn": turn,
                    "tokens": int(ids.size),
                    "computed": sum(op.tokens for op in plan.ops if isinstance(op, Prefill)),
                    "budget": window.policy.kl_budget,
                    "predicted_kl": plan.predicted_kl,
                    "kl": window.audit(attribute=False).kl,
                }
            )
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.eval.headers", description=__doc__)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULT, help="where the JSON goes")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    documents = [text[:900] for _, text in readmes()][:4]
    rows = [row for policy in POLICIES for row in measure(policy, documents, options.turns)]
    if any(row["kl"] > 1e-6 for row in rows if row["policy"] == "exact"):
        raise ValueError("an exact window is not a re-prefill's")
    options.out.write_text(json.dumps({"hardware": hardware(), "rows": rows}, indent=1) + "\n")
    print(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
