"""Window operations on real documents: what a re-prefill would hold, and what every arm holds instead.

A case is one edit of one window. Its arms are lists of KVBlocks, ready to be asked a question. The
first arm of a case is the one η is measured against.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from agentkv.kv import KVBlock
from agentkv.patches import Budget, OrbitMean, apply, deficit, form, removal
from agentkv.patches.basis import SharedBasis
from bench.eval.reference import Reference, join, split

RANKS = (8, 16, 32, 64)
Window = list[KVBlock]


@dataclass(frozen=True)
class Case:
    """One edit: the truth, the arms, and what their corrections weigh as a share of the touched pages."""

    operation: str
    truth: Window
    arms: Mapping[str, Callable[[], Window]]
    """Made on demand: a window of KV per arm would not fit in memory together."""


class Documents:
    """One window [prefix · C1 … Ck] with everything its edits are made from."""

    def __init__(self, reference: Reference, prefix: Sequence[int], chunks: Sequence[Sequence[int]]) -> None:
        self.reference, self.prefix, self.chunks = reference, list(prefix), [list(c) for c in chunks]
        self.full = self.conditioned(range(len(chunks)))
        self.canonical = [self.conditioned([i])[1] for i in range(len(chunks))]

    def conditioned(self, order: Sequence[int]) -> Window:
        """[prefix, chunks in `order`], from one prefill."""
        parts = [self.prefix, *(self.chunks[i] for i in order)]
        return split(self.reference.prefill(list(itertools.chain(*parts))), [len(p) for p in parts])

    def at(self, block: KVBlock, like: KVBlock) -> KVBlock:
        """`block` rotated to where `like` stands."""
        return self.reference.move(block, int(like.positions[0]))


def recall(
    docs: Documents, size: int, sinks: Mapping[str, Sequence[int]], basis: SharedBasis, seed: int
) -> Case:
    """The last of `size` chunks comes back behind the others: canonical + R(δ), with what repairs it.

    sinks: other prefixes the canonical could have been computed behind, by name.
    """
    *front, target = docs.full[: size + 1]
    chunk = docs.chunks[size - 1]
    moved = docs.at(docs.canonical[size - 1], target)
    delta = deficit(target.slots, moved.slots)
    arms: dict[str, Callable[[], Window]] = {
        "rotate": lambda: [*front, moved],
        "no rotation": lambda: [*front, docs.canonical[size - 1]],
    }

    def patched(**how: object) -> Callable[[], Window]:
        return lambda: [*front, apply(moved, form(delta, **how))]  # type: ignore[arg-type]

    for rank in RANKS:
        arms[f"energy {rank}"] = patched(budget=Budget(rank=rank))
        arms[f"uniform {rank}"] = patched(budget=Budget(rank=rank), scheme="uniform")
    for weight in (2.0, 4.0):
        arms[f"energy 32, keys x{weight:g}"] = patched(budget=Budget(rank=32), weights=(weight, 1.0))
    for share in (1 / 2, 2 / 3):
        arms[f"energy 32, deepest {share:.0%}"] = patched(budget=Budget(rank=32), layers=share)
    arms["energy 32 in bf16 (half the bytes)"] = patched(budget=Budget(rank=32), dtype=torch.bfloat16)
    arms["energy 64 in bf16 (the bytes of 32)"] = patched(budget=Budget(rank=64), dtype=torch.bfloat16)
    arms["shared basis 32"] = lambda: [*front, apply(moved, basis.project(delta))]
    arms |= _rows(docs, front, moved, size, seed)
    for name, sink in sinks.items():
        other = split(docs.reference.prefill([*sink, *chunk]), [len(sink), len(chunk)])[1]
        placed = docs.at(other, target)
        arms[f"rotate, canonical behind {name}"] = lambda placed=placed: [*front, placed]
        arms[f"energy 32, canonical behind {name}"] = lambda placed=placed: [
            *front,
            apply(placed, form(deficit(target.slots, placed.slots), Budget(rank=32))),
        ]
    return Case("recall at the tail", docs.full[: size + 1], arms)


def _rows(
    docs: Documents, front: Window, moved: KVBlock, size: int, seed: int
) -> Iterator[tuple[str, Callable[[], Window]]]:
    """Recompute as many rows of the chunk as a patch of rank 8 or 32 has bytes: random ones, or the first."""
    n, d = moved.tokens, moved.slots[0][0, 0].numel()
    start = sum(b.tokens for b in front)
    ids = list(itertools.chain(docs.prefix, *docs.chunks[:size]))
    shuffled = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    for rank in (8, 32):
        count = round(rank * (1 / n + 1 / d) * n)
        for name, rows in (("random rows", shuffled[:count]), ("first rows", torch.arange(count))):
            yield (
                f"{name}, bytes of rank {rank}",
                lambda rows=rows: [docs.reference.recompute(join([*front, moved]), ids, start + rows)],
            )


def leave(docs: Documents, operation: str, gone: Sequence[int]) -> Case:
    """Chunks `gone` leave; the ones behind them stay as they are, or are rebuilt."""
    order = [i for i in range(len(docs.chunks)) if i not in gone]
    truth = docs.conditioned(order)
    moved = [docs.at(docs.full[i + 1], truth[k + 1]) for k, i in enumerate(order)]
    canonical = [docs.at(docs.canonical[i], truth[k + 1]) for k, i in enumerate(order)]
    touched = [i > min(gone) for i in order]

    def repaired(rank: int) -> Window:
        pairs = zip(truth[1:], moved, touched, strict=True)
        return [
            truth[0],
            *(apply(m, removal(t.slots, m.slots, Budget(rank=rank))) if hit else m for t, m, hit in pairs),
        ]

    return Case(
        operation,
        truth,
        {
            "canonical + R": lambda: [
                truth[0],
                *(c if hit else m for c, m, hit in zip(canonical, moved, touched, strict=True)),
            ],
            "keep + R": lambda: [truth[0], *moved],
            "keep + R + removal patch 8": lambda: repaired(8),
            "keep + R + removal patch 32": lambda: repaired(32),
        },
    )


def reorder(docs: Documents, target: tuple[int, ...]) -> Iterator[Case]:
    """The first three chunks stand in the order `target`, the fourth stays last.

    The orbit mean is taken over the other five orders, at the places of the target order. One prefill
    per order serves two cases: the fourth chunk alone, and the whole set (a prefix of the same window).
    """
    orders = list(itertools.permutations(range(3)))
    windows = {o: docs.conditioned((*o, 3)) for o in orders if o != orders[0]} | {orders[0]: docs.full[:5]}
    truth = windows[target]
    place = {chunk: truth[k + 1] for k, chunk in enumerate((*target, 3))}
    base = {chunk: docs.at(docs.canonical[chunk], like) for chunk, like in place.items()}

    def behind(order: tuple[int, ...], chunk: int) -> KVBlock:
        return docs.at(windows[order][(*order, 3).index(chunk) + 1], place[chunk])

    def stored(order: tuple[int, ...], chunk: int) -> KVBlock:
        delta = deficit(behind(order, chunk).slots, base[chunk].slots)
        return apply(base[chunk], form(delta, Budget(rank=32)))

    def orbit(chunk: int) -> KVBlock:
        mean = OrbitMean()
        for order in orders:
            if order != target:
                mean.add(deficit(behind(order, chunk).slots, base[chunk].slots))
        return apply(base[chunk], mean.form(Budget(rank=32)))

    makers: dict[str, Callable[[int], KVBlock]] = {
        "canonical + R": lambda c: base[c],
        "keep + R": lambda c: behind(orders[0], c),
        "orbit patch 32, target order held out": orbit,
        "patch 32 of the old order": lambda c: stored(orders[0], c),
        "patch 32 of the new order": lambda c: stored(target, c),
    }
    alone = {name: lambda make=make: [*truth[:4], make(3)] for name, make in makers.items()}
    yield Case("three predecessors permuted, the last chunk only", truth, alone)
    whole = {name: lambda make=make: [truth[0], *map(make, target)] for name, make in makers.items()}
    yield Case("a set of three permuted", truth[:4], whole)


def reinsert(docs: Documents) -> Case:
    """The first chunk comes back in front of chunks that were prefilled without it."""
    count = len(docs.chunks)
    without = docs.conditioned(range(1, count))
    truth = docs.full
    moved = [docs.at(without[i], truth[i + 1]) for i in range(1, count)]
    canonical = [docs.at(docs.canonical[i], truth[i + 1]) for i in range(1, count)]

    def repaired(rank: int) -> Window:
        pairs = zip(truth[2:], moved, strict=True)
        return [*truth[:2], *(apply(m, form(deficit(t.slots, m.slots), Budget(rank=rank))) for t, m in pairs)]

    return Case(
        "an antecedent re-inserted in front",
        truth,
        {
            "canonical + R": lambda: [*truth[:2], *canonical],
            "keep + R": lambda: [*truth[:2], *moved],
            "keep + R + patch 8": lambda: repaired(8),
            "keep + R + patch 32": lambda: repaired(32),
        },
    )
