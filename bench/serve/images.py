"""Recall of an evicted image against the prefill of its own tokens, whose features are at hand already.

Either side runs no vision tower, which is checked; what it costs stands beside them. The model is random
(`bench.models.random_vlm`): times depend on its shape.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from agentkv import Engine, Handle, Policy, Window
from agentkv.audit import divergence
from agentkv.calibrate import hardware
from bench.models import random_vlm
from bench.timing import alternate, ratio

IMAGE_TOKENS, LATER = 256, 64
QUESTION = "Where is the button that downloads the invoice?"


class Way(NamedTuple):
    """How an image comes back: under which policy, the op that its plan must contain, and the KL it may not
    exceed, as a share of the KL of doing without the image."""

    policy: Literal["exact", "balanced"]
    expects: str
    max_share: float


WAYS = {
    "computed_anew": Way("exact", "prefill", 1e-5),
    "stored_rows": Way("balanced", "load", 0.1),
    "stored_patch": Way("balanced", "apply_patch", 0.1),
}


@dataclass
class Case:
    """A window out of which the image has gone, and what it was."""

    window: Window
    image: Handle
    picture: Any


def measure(size: int, rounds: int, threads: int) -> list[dict[str, Any]]:
    """A row for each way back: computed behind what stands there now, as it was behind other antecedents, and
    by the patch of an earlier recall to the same place."""
    processor = random_vlm.processor()
    with Engine.from_model(random_vlm.model(), processor.tokenizer, processor=processor) as engine:
        case = _build(engine, size)
        rows = []
        for name, way in WAYS.items():
            if way.expects == "apply_patch":
                _meet(case)
            rows.append(_row(engine, case, name, rounds, threads))
        return rows


def _build(engine: Engine, size: int) -> Case:
    """Text, an image, and more text: `size` tokens with the image, which is then evicted.

    Exactly, so that no KL but that of the recall is measured.
    """
    letters = np.random.default_rng(0).integers(len(random_vlm.SPECIAL), random_vlm.TEXT["vocab_size"], size)
    picture = random_vlm.picture(IMAGE_TOKENS)
    window = engine.window(policy="exact")
    window.append_ids(letters[: size - IMAGE_TOKENS - LATER], kind="document")
    image = window.append(picture)
    window.append_ids(letters[-LATER:], kind="document")
    window.commit()
    window.evict(image)
    window.commit()
    return Case(window, image, picture)


def _meet(case: Case) -> None:
    """Give the store what an earlier recall to the same place leaves there, settled into a patch."""
    with case.window.fork() as twin:
        image = twin.recall(case.image)
        twin.commit()
        twin.evict(image)
        twin.commit()
        twin.settle()


@contextmanager
def _ready(case: Case, way: Way) -> Iterator[Window]:
    """A fork that has its rows to itself, with room for the image."""
    with case.window.fork() as twin:
        twin.policy = Policy(name=way.policy)
        twin.kv.own()
        twin.kv.grow(twin.kv.end + 2 * IMAGE_TOKENS)
        yield twin


def _row(engine: Engine, case: Case, name: str, rounds: int, threads: int) -> dict[str, Any]:
    seen, way = engine.tower.runs, WAYS[name]
    with _ready(case, way) as twin:
        twin.recall(case.image)
        plan = twin.commit()
        run = twin.runs()[-1]  # the image's tokens, at the rows and positions where they now stand
        answer = _asked(twin)
        truth = _truth(engine, twin, case.picture)
    with _ready(case, way) as twin:
        kl, kl_without = (float(divergence(truth, of)[0]) for of in (answer, _asked(twin)))
    rows: dict[str, list[float]] = {"recall": [], "prefill": []}
    for _ in range(rounds + 1):
        with _ready(case, way) as ours, _ready(case, way) as other:

            def recall(window: Window = ours) -> None:
                window.recall(case.image)
                window.commit()

            def prefill(window: Window = other) -> None:
                engine.backend.prefill(window.kv, [run], keep=0)

            arms: dict[str, Callable[[], object]] = {"recall": recall, "prefill": prefill}
            for arm, laps in alternate(arms, 1, warm=0).items():
                rows[arm] += laps
    ops = {op.op for op in plan.ops}
    correct = way.expects in ops and kl <= way.max_share * kl_without and engine.tower.runs == seen
    encode = alternate({"encode": lambda: engine.tower.image(random_vlm.picture(IMAGE_TOKENS, seed=1))}, 1)
    ours_ms, prefill_ms = rows["recall"][1:], rows["prefill"][1:]  # the first round warms up
    return {
        "op": f"recall_image_{name}",
        "window": len(case.window) + len(run.ids),
        "image_tokens": len(run.ids),
        "threads": threads,
        "ms": round(statistics.median(ours_ms), 2),
        "prefill_ms": round(statistics.median(prefill_ms), 2),
        "ratio_of_times": round(ratio(ours_ms, prefill_ms), 3),
        "encode_ms": round(encode["encode"][0], 2),
        "ops": sorted(ops),
        "kl": kl,
        "kl_without_image": kl_without,
        "correct": correct,
        "hardware": hardware(),
    }


def _asked(window: Window) -> torch.Tensor:
    """Logits [1, vocab] behind a question that is appended."""
    window.append(QUESTION, kind="user")
    window.commit(keep=1)
    logits = window.last_outcome.logits
    assert logits is not None  # the question is always prefilled
    return logits


def _truth(engine: Engine, window: Window, picture: Any) -> torch.Tensor:
    """transformers' logits [1, vocab] behind the window, from pixels and at positions that it computes."""
    ids = torch.as_tensor(window.ids())[None]
    processor, model = engine.loaded.processor, engine.loaded.model
    image = processor.image_processor(images=[picture], return_tensors="pt")
    kinds = (ids == random_vlm.SPECIAL.index("<|image_pad|>")).int()
    with torch.inference_mode():
        return model(ids, mm_token_type_ids=kinds, logits_to_keep=1, **image).logits[0]
