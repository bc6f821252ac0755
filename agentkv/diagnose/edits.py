"""Edits of a window: what its survivors are worth when they are only turned into place, or start over.

"keep": every survivor keeps the KV it had and is turned, R(δ). "canonical": those that the edit touched are
replaced by their canonicals. The truth is a prefill of the window as it is after the edit.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from agentkv.diagnose.probe import Blocks, plain
from agentkv.diagnose.sample import Sample
from agentkv.kv import KVBlock
from agentkv.patches import OrbitMean

ORDERS = 2
"""Orders of the antecedents that an orbit patch is the mean of; the one it is measured in is none of them."""


@dataclass(frozen=True)
class Edit:
    """KL to the re-prefill in nats."""

    keep: float
    canonical: float


def measure(sample: Sample, seed: int) -> tuple[dict[str, Edit], float, float]:
    """(every edit by name, KL of a slide with removal patches, KL of an orbit patch in an order it is not
    of)."""
    count = len(sample.chunks)
    one, hole = after(sample, [0]), after(sample, [count // 2])
    orders = permutations(count - 1, seed)
    windows = [sample.prefill([], [*order, count - 1]) for order in orders]
    found = {
        "slide_1": leave(sample, [0], one),
        "slide_2": leave(sample, [0, 1], after(sample, [0, 1])),
        "hole": leave(sample, [count // 2], hole),
        "reorder": reorder(sample, orders[0], windows[0]),
        "recall": recall(sample, count // 2, hole),
        "insert": insert(sample, one),
    }
    return found, removed(sample, one), orbit(sample, [window[-1] for window in windows])


def after(sample: Sample, gone: Sequence[int]) -> Blocks:
    """The window as a prefill makes it when the chunks ``gone`` are not in it."""
    first, count = min(gone), len(sample.chunks)
    return sample.prefill(sample.full[:first], [i for i in range(first, count) if i not in gone])


def leave(sample: Sample, gone: Sequence[int], truth: Blocks) -> Edit:
    """The chunks ``gone`` leave, the ones behind them move up."""
    stay = [i for i in range(len(sample.chunks)) if i not in gone]
    fresh = [sample.full[i] if i < min(gone) else sample.canonical[i] for i in stay]
    return _compare(sample, truth, [sample.full[i] for i in stay], fresh)


def insert(sample: Sample, without: Blocks) -> Edit:
    """The first chunk comes in front of the others, which were prefilled ``without`` it."""
    first = sample.full[0]
    return _compare(sample, sample.full, [first, *without], [first, *sample.canonical[1:]])


def recall(sample: Sample, chunk: int, others: Blocks) -> Edit:
    """A chunk that left comes back behind all ``others``; what it kept is from its old place."""
    truth = sample.prefill(others, [chunk])
    return _compare(sample, truth, [*others, sample.full[chunk]], [*others, sample.canonical[chunk]])


def reorder(sample: Sample, order: Sequence[int], window: Blocks) -> Edit:
    """All but the last chunk change places: ``window`` was prefilled in ``order``, the last one behind."""
    kept = [window[order.index(i)] for i in range(len(order))]
    return _compare(sample, sample.full, [*kept, window[-1]], sample.canonical)


def removed(sample: Sample, truth: Blocks) -> float:
    """The first chunk left, and every survivor got its removal patch."""
    probe, window = sample.probe, []
    for kept, wanted in zip(sample.full[1:], truth, strict=True):
        delta = probe.deficit(wanted, kept)
        window.append((kept, probe.recipe.form(delta, "removal", probe.start(kept))))
    return sample.error(window, sample.ask(truth))


def orbit(sample: Sample, conditioned: Sequence[KVBlock]) -> float:
    """The last chunk with the patch of its mean deficit; ``conditioned``: its KV behind other orders."""
    probe, base, mean = sample.probe, sample.canonical[-1], OrbitMean()
    for block in conditioned:
        mean.add(probe.deficit(block, base))
    return sample.behind_the_rest((base, probe.recipe.form(mean.mean, "orbit", probe.start(base))))


def permutations(count: int, seed: int) -> list[tuple[int, ...]]:
    """ORDERS different orders of ``count`` ≥ 2 things, or as many as there are, never the ascending one."""
    most, draw = min(ORDERS, math.factorial(count) - 1), random.Random(seed)
    found: dict[tuple[int, ...], None] = {}
    while len(found) < most:
        found[tuple(draw.sample(range(count), count))] = None
        found.pop(tuple(range(count)), None)
    return list(found)


def _compare(sample: Sample, truth: Blocks, keep: Blocks, canonical: Blocks) -> Edit:
    right = sample.truth if truth is sample.full else sample.ask(truth)
    return Edit(sample.error(plain(keep), right), sample.error(plain(canonical), right))
