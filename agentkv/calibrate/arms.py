"""One edited window put together in several ways: KV that stayed, patches, canonicals, or exact KV."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from torch import Tensor

from agentkv.calibrate.cases import Books, Case, Treatment
from agentkv.diagnose.probe import Placed, Probe
from agentkv.kv import KVBlock
from agentkv.patches import Budget, Patch, Spectrum, decompose
from agentkv.patches.orbit import OrbitMean

RANKS = (8, 32, 64)
"""Ranks of patches that are measured."""
ODDS: dict[Treatment, int] = {"stale": 8, "canonical": 4, "patch": 6, "near": 3, "removal": 3, "orbit": 6}
"""How often a treatment is drawn where it is possible."""


@dataclass(frozen=True)
class Stored:
    """KV of a chunk from another window. antecedents: what it was computed behind there."""

    block: KVBlock
    antecedents: tuple[int, ...]


class Arm(NamedTuple):
    """A window that was put together, and what is approximate in it."""

    window: list[Placed]
    cases: list[Case]


class Arms:
    """The ways to put one wanted window together.

    exact: KV of every wanted chunk from a re-prefill. stored: of those that were computed elsewhere.
    orders: more KV of chunks behind the same antecedents in other orders, for orbit patches. canonical: of a
    chunk.
    """

    def __init__(
        self,
        probe: Probe,
        books: Books,
        exact: dict[int, KVBlock],
        stored: dict[int, Stored],
        orders: dict[int, list[KVBlock]],
        canonical: Callable[[int], KVBlock],
    ) -> None:
        self.probe, self.books = probe, books
        self.exact, self.stored, self.orders = exact, stored, orders
        self.changes = {i: books.change(i, kv.antecedents) for i, kv in stored.items()}
        self.changed = [i for i in exact if self.options(i)]
        self.canonical = canonical
        self.missing = cache(lambda i: decompose(self._deficit(exact[i], canonical(i))))

    def options(self, i: int) -> list[Treatment]:
        """What can be done to chunk `i` short of computing it; nothing where its KV is right as it is."""
        change = self.changes.get(i)
        if change is not None and change.kind == "kept":
            return []
        found: list[Treatment] = ["patch", "canonical"]
        if change is not None:
            found.append("stale")
            if self.books.bare(self.stored[i].antecedents):
                return found
            found.append("near")
            if change.lost_tokens and not change.gained_tokens and not change.reordered:
                found.append("removal")
        return [*found, "orbit"] if i in self.orders else found

    def keep(self) -> Arm:
        """All that was computed elsewhere stays as it is, all that is new is computed."""
        return self._arm({i: "stale" for i in self.changed if i in self.stored}, random.Random(0))

    def one(self, draw: random.Random) -> Arm:
        """One chunk is treated in some way, the others are exact."""
        i = draw.choice(self.changed)
        return self._arm({i: self._treatment(i, draw)}, draw)

    def mixed(self, draw: random.Random) -> Arm:
        """Every chunk on its own: exact, or treated in some way."""
        chosen = [i for i in self.changed if draw.random() < 0.7] or [draw.choice(self.changed)]
        return self._arm({i: self._treatment(i, draw) for i in chosen}, draw)

    def _treatment(self, i: int, draw: random.Random) -> Treatment:
        options = self.options(i)
        return draw.choices(options, [ODDS[option] for option in options])[0]

    def _arm(self, treated: dict[int, Treatment], draw: random.Random) -> Arm:
        window, cases = list[Placed](), list[Case]()
        for i, block in self.exact.items():
            if i not in treated:
                window.append((block, None))
                continue
            rank = draw.choice(RANKS) if treated[i] == "patch" else int(self.probe.recipe.budget.rank or 0)
            window.append(self._placed(i, treated[i], rank))
            ranked = treated[i] in ("patch", "near", "orbit", "removal")
            if treated[i] == "stale" and self.books.bare(self.stored[i].antecedents):
                cases.append(self.books.case(i, "canonical"))
                continue
            change = self.changes.get(i) if treated[i] in ("stale", "near", "removal") else None
            cases.append(self.books.case(i, treated[i], change, rank if ranked else 0))
        return Arm(window, cases)

    def _placed(self, i: int, treatment: Treatment, rank: int) -> Placed:
        if treatment == "canonical":
            return self.canonical(i), None
        if treatment == "patch":
            return self._patched(self.canonical(i), self.missing(i), rank)
        if treatment == "orbit":
            return self._patched(self.canonical(i), decompose(self._mean(i)), rank)
        kept = self.stored[i].block
        if treatment == "stale":
            return kept, None
        if treatment == "near":
            return self._patched(self.canonical(i), decompose(self._deficit(kept, self.canonical(i))), rank)
        return self._patched(kept, decompose(self._deficit(self.exact[i], kept)), rank)

    def _deficit(self, wanted: KVBlock, base: KVBlock) -> tuple[Tensor, ...]:
        return self.probe.deficit(wanted, base)

    def _mean(self, i: int) -> Sequence[Tensor]:
        mean = OrbitMean()
        for block in self.orders[i]:
            mean.add(self._deficit(block, self.canonical(i)))
        return mean.mean

    def _patched(self, base: KVBlock, spectrum: Spectrum, rank: int) -> Placed:
        recipe = self.probe.recipe
        patch: Patch = spectrum.patch(Budget(rank=rank), recipe.scheme, dtype=recipe.dtype)
        return base, replace(patch, position=self.probe.start(base))
