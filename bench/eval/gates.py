"""What has to hold before a quality run may print a number. Each gate raises GateError."""

from collections.abc import Sequence

import torch

from agentkv.patches import Budget, apply, deficit, form
from bench.eval.reference import Reference, join, split

LOGITS = 1e-3
"""fp32: largest difference of two logits that count as equal."""


class GateError(AssertionError):
    """A gate that failed: the run is not worth its numbers."""


def check(
    reference: Reference, sink: Sequence[int], first: Sequence[int], second: Sequence[int], ask: Sequence[int]
) -> dict[str, float]:
    """Run every gate on one window [sink · first · second]; returns what each measured."""
    lengths = [len(sink), len(first), len(second)]
    ids = [*sink, *first, *second]
    window = split(reference.prefill(ids), lengths)
    canonical = split(reference.prefill([*sink, *second]), [lengths[0], lengths[2]])[1]
    start = lengths[0] + lengths[1]
    moved = reference.move(canonical, start)
    truth = reference.logits(window, ask)
    found: dict[str, float] = {}

    back = reference.move(moved, lengths[0])
    scale = canonical.slots[0].abs().max()
    found["rotation round trip"] = float((back.slots[0] - canonical.slots[0]).abs().max() / scale)
    layer0 = (moved.slots[0][0] - window[2].slots[0][0]).abs().max() / scale
    found["shift equality at layer 0"] = float(layer0)
    patch = form(deficit(window[2].slots, moved.slots), Budget(rank=10_000))
    full = reference.logits([*window[:2], apply(moved, patch)], ask)
    found["full-rank patch, logits"] = float((full - truth).abs().max())
    blind = join([*window[:2], moved])
    redone = reference.recompute(blind, ids, torch.arange(start, len(ids)))
    found["100 % rows recomputed, logits"] = float((reference.logits([redone], ask) - truth).abs().max())
    straight = reference.logits([], [*ids, *ask])[-len(ask) :]
    found["window against one forward, logits"] = float((straight - truth).abs().max())
    change = float((reference.logits([blind], ask) - truth).abs().max())
    if change < 10 * LOGITS:
        raise GateError(f"blind reuse changes the logits by {change} only: these gates could not fail")
    for name, value in found.items():
        limit = LOGITS if "logits" in name else 1e-4
        if not value <= limit:
            raise GateError(f"{name}: {value} exceeds {limit}")
    return found
