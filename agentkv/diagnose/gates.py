"""What must hold before a diagnosis may print a number, measured on its first window."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agentkv.demo.errors import CheckFailed
from agentkv.demo.measure import LOGITS
from agentkv.diagnose.probe import Blocks, largest, plain
from agentkv.diagnose.report import Gate
from agentkv.diagnose.sample import Sample
from agentkv.patches import Budget

KV = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 2e-3}
"""Largest difference of cached numbers that count as equal, relative to the largest number of their slot.

fp32 leaves room for the model's own rotary angles: transformers computes them in fp32.
"""
FLOORS = 4
"""Half precision has no bound of its own on logits: so many times what two exact ways differ by here."""


def check(sample: Sample) -> dict[str, Gate]:
    """Every gate with what it measured and its limit. Raises CheckFailed naming the first that fails."""
    probe, canonical, target = sample.probe, sample.canonical[-1], sample.target
    dtype = target.slots[0].dtype
    limit = LOGITS[dtype] if dtype in LOGITS else FLOORS * _apart(sample, in_pieces(sample))
    moved = probe.moved(canonical, target)
    full = sample.spectrum.patch(Budget(rank=max(target.tokens, *(x.shape[2] for x in sample.spectrum.flat))))
    blind = sample.logits([*plain(sample.full[:-1]), (canonical, None)])
    patched = sample.logits([*plain(sample.full[:-1]), (canonical, probe.placed(full, canonical))])
    found = {
        "rotation there and back": Gate(
            value=_relative(probe.moved(moved, canonical).slots, canonical.slots), limit=KV[dtype]
        ),
        "layer 0 of a moved chunk": Gate(
            value=_relative([x[:1] for x in moved.slots], [x[:1] for x in target.slots]), limit=KV[dtype]
        ),
        "all rows recomputed, logits": Gate(value=_apart(sample, recomputed(sample)), limit=limit),
        "full-rank patch, logits": Gate(value=largest(sample.truth.logits, patched), limit=limit),
        # Or the gates on logits could not have failed.
        "that limit, against what blind reuse changes": Gate(
            value=limit, limit=largest(sample.truth.logits, blind)
        ),
    }
    for name, gate in found.items():
        if not gate.value <= gate.limit:  # NaN fails as well
            raise CheckFailed(
                got=f"{gate.value:.3g} for {name!r}, in {dtype}",
                expected=f"at most {gate.limit:.3g}",
                do="load the model in float32, or report this with its name: no number of this run can be "
                "trusted",
            )
    return found


def recomputed(sample: Sample) -> Blocks:
    """The window with its last chunk prefilled once more, behind the others."""
    return sample.prefill(sample.full[:-1], [len(sample.chunks) - 1])


def in_pieces(sample: Sample) -> Blocks:
    """The window prefilled chunk by chunk."""
    window: Blocks = []
    for i in range(len(sample.chunks)):
        window = sample.prefill(window, [i])
    return window


def _apart(sample: Sample, window: Blocks) -> float:
    return largest(sample.truth.logits, sample.logits(plain(window)))


def _relative(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """The largest difference in any slot, relative to its largest number."""
    return max(largest(a, b) / float(b.abs().max()) for a, b in zip(found, wanted, strict=True))
