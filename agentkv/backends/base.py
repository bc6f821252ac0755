"""What a plan needs done. A backend decides nothing: it reads, writes and runs what it is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from agentkv.cache import Run, WindowKV
from agentkv.inputs import Ids
from agentkv.kv import KVBlock
from agentkv.layout import Layout
from agentkv.media import Media
from agentkv.patches import Patch


class Backend(Protocol):
    """The verbs of the executor. ``kv`` is always changed in place."""

    name: str
    layout: Layout

    def new_kv(self, capacity: int) -> WindowKV:
        """Rows for an empty window."""
        ...

    def read(self, kv: WindowKV, first: int, last: int) -> KVBlock:
        """A private copy of rows ``first:last``."""
        ...

    def place(
        self,
        kv: WindowKV,
        row: int,
        block: KVBlock,
        patch: Patch | None = None,
        position: int | None = None,
    ) -> None:
        """Write ``R(δ) block + patch`` to the rows from ``row`` on, δ = position - where the block stands.

        position: of the block's first token; None where rows are positions.
        """
        ...

    def prefill(self, kv: WindowKV, runs: Sequence[Run], keep: int) -> Tensor:
        """Run them in one forward, each behind the rows in front of it; logits ``[keep, vocab]`` of the last
        ``keep`` tokens."""
        ...

    def ask(self, kv: WindowKV, runs: Sequence[Run]) -> Tensor:
        """As `prefill`; returns how much the last run attends every live row, fp32 or fp64 ``[rows]``."""
        ...

    def canonical(self, ids: Ids, media: Media | None = None) -> KVBlock:
        """KV(B|∅): one forward of the chunk behind the engine's fixed sink alone."""
        ...

    def deficit(self, conditioned: KVBlock, base: KVBlock) -> tuple[Tensor, ...]:
        """What ``base`` misses to be ``conditioned``, per slot ``[L, n, H, D]``, at the positions of
        ``base``."""
        ...

    def form(self, conditioned: KVBlock, canonical: KVBlock) -> Patch:
        """The patch that turns the canonical, wherever it is placed, into ``conditioned`` there."""
        ...
