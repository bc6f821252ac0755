"""The last chunk of a window and all in front of it: what its canonical misses, and what brings it back.

The last chunk is the one that an agent recalls. "Blind" is its canonical moved into place, R(δ) and nothing
else; η of everything here is measured against that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from agentkv.diagnose.probe import power
from agentkv.diagnose.sample import Sample
from agentkv.layout import Layout
from agentkv.patches import Budget, Patch, Spectrum
from agentkv.patches.basis import SharedBasis

RANKS = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Ranks that patches are tried at; the functional rank is one of them."""
RANK = 32
"""The rank of the depth curve and of the shared basis."""
DEPTHS: Mapping[str, float] = MappingProxyType(
    {"1/4": 1 / 4, "1/2": 1 / 2, "2/3": 2 / 3, "3/4": 3 / 4, "all": 1.0}
)
"""Shares of the layers that are patched, deepest first, by name."""
SUBSETS = (10, 15, 30, 50)
"""Percent of the tokens whose rows are made exact."""
ENERGY = 0.9
"""Share of ‖Δ‖² whose components are counted."""


def stored(sample: Sample, spectrum: Spectrum, rank: float) -> Patch:
    """A patch with the bytes of ``rank`` in every layer of the spectrum, as the engine would store it."""
    recipe = sample.probe.recipe
    return spectrum.patch(Budget(rank=rank), recipe.scheme, dtype=recipe.dtype)


def patched(sample: Sample, patch: Patch) -> float:
    """KL with canonical + R(δ) + patch, formed of the sample's ``delta``."""
    base = sample.canonical[-1]
    return sample.behind_the_rest((base, sample.probe.placed(patch, base)))


def by_rank(sample: Sample, ranks: Sequence[int] = RANKS) -> dict[int, float]:
    """KL by rank, all layers patched."""
    return {rank: patched(sample, stored(sample, sample.spectrum, rank)) for rank in ranks}


def by_depth(sample: Sample) -> dict[str, float]:
    """KL by the share of the layers that a patch of rank 32 corrects; its bytes grow with the share."""
    return {
        name: patched(sample, stored(sample, sample.spectrum.deepest(share), RANK))
        for name, share in DEPTHS.items()
    }


def shared(sample: Sample, basis: SharedBasis) -> float:
    """KL with coefficients in a basis that was pooled over other pairs."""
    return patched(sample, basis.project(sample.delta))


def by_tokens(sample: Sample, percents: Sequence[int], order: Tensor) -> dict[int, float]:
    """KL when the first so many percent of ``order``, a permutation of the tokens, have exact rows."""
    moved = sample.probe.moved(sample.canonical[-1], sample.target)
    found = {}
    for percent in percents:
        rows = order[: math.ceil(percent / 100 * len(order))]
        found[percent] = sample.behind_the_rest(
            (sample.probe.rows_made_exact(moved, sample.target, rows), None)
        )
    return found


def worst_first(delta: Sequence[Tensor]) -> Tensor:
    """Tokens by ‖Δ‖² over all layers and slots, largest first: int64 ``[n]`` on the CPU."""
    score = sum(x.double().square().sum((0, 2, 3)) for x in delta)
    return torch.as_tensor(score).argsort(descending=True).cpu()


def profile(sample: Sample, layout: Layout) -> dict[str, list[float]]:
    """‖Δ‖ / ‖KV(B|A)‖ per layer, by slot."""
    pairs = zip(layout.slots, sample.delta, sample.target.slots, strict=True)
    return {slot.name: (power(d) / power(kv)).sqrt().tolist() for slot, d, kv in pairs}


def components(spectrum: Spectrum, layout: Layout, noise: Mapping[str, Sequence[bool]]) -> dict[str, float]:
    """Components that hold 90 % of ‖Δ‖² in a layer, mean over the layers, by slot.

    noise: by slot, the layers in which nothing differs beyond rounding; they are left out.
    """
    found = {}
    for slot, (_, _, strength) in zip(layout.slots, spectrum.parts, strict=True):
        held = strength.double().cumsum(1) / strength.double().sum(1, keepdim=True)  # [L, p]
        counts = (held < ENERGY).sum(1) + 1
        kept = [int(c) for c, silent in zip(counts, noise[slot.name], strict=True) if not silent]
        found[slot.name] = sum(kept) / len(kept) if kept else 0.0
    return found
