"""A backend without a model: the KV of a token is its id, and every call is written down.

For tests of planner and executor, and for users' own policies: `RecordingBackend.calls` tells what a plan
did, and the rows of the window tell which tokens stand where.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentkv.cache import Run, WindowKV
from agentkv.inputs import Ids
from agentkv.kv import KVBlock
from agentkv.layout import Layout, SlotSpec
from agentkv.media import Media
from agentkv.patches import Patch

VOCABULARY = 64


class RecordingBackend:
    """Calls are tuples (verb, first row, tokens); patches are recognised, not applied."""

    name = "recording"

    def __init__(self, max_positions: int = 4096) -> None:
        self.layout = Layout(
            slots=(SlotSpec("keys", 1, 1),),
            layers=1,
            query_heads=1,
            max_positions=max_positions,
            scaling=1.0,
            rope_type="default",
        )
        self.calls: list[tuple[Any, ...]] = []

    def new_kv(self, capacity: int) -> WindowKV:
        return WindowKV(self.layout, capacity, torch.int64, torch.device("cpu"))

    def read(self, kv: WindowKV, first: int, last: int) -> KVBlock:
        self.calls.append(("read", first, last - first))
        return kv.view(first, last).clone()

    def place(
        self,
        kv: WindowKV,
        row: int,
        block: KVBlock,
        patch: Patch | None = None,
        position: int | None = None,
    ) -> None:
        self.calls.append(("patch" if patch else "place", row, block.tokens))
        kv.slots[0][:, row : row + block.tokens] = block.slots[0]
        delta = (row if position is None else position) - int(block.positions[0])
        kv.positions[row : row + block.tokens] = block.positions + delta

    def prefill(self, kv: WindowKV, runs: Sequence[Run], keep: int) -> Tensor:
        """The next token is the sum of all ids in front, modulo the vocabulary: it depends on the whole
        window."""
        stretches = kv.live().expect(runs)
        for tokens, end, _ in stretches:
            self.calls.append(("prefill", kv.start + end - tokens, tokens))
        for run in runs:
            kv.slots[0][0, run.row : run.stop, 0, 0] = torch.tensor(run.ids)
        tokens, end, _ = stretches[-1]
        seen = kv.slots[0][0, kv.start : kv.start + end, 0, 0].cumsum(0)[-tokens:]
        return torch.nn.functional.one_hot(seen[tokens - keep :] % VOCABULARY, VOCABULARY).float()

    def ask(self, kv: WindowKV, runs: Sequence[Run]) -> Tensor:
        """As `prefill`; later rows are attended more."""
        self.prefill(kv, runs, keep=0)
        return torch.arange(runs[-1].stop - kv.start).float()

    def canonical(self, ids: Ids, media: Media | None = None) -> KVBlock:
        self.calls.append(("canonical", 0, len(ids)))
        return KVBlock((torch.tensor(ids).reshape(1, -1, 1, 1),), torch.arange(len(ids)))

    def deficit(self, conditioned: KVBlock, base: KVBlock) -> tuple[Tensor, ...]:
        return tuple(c.float() - b.float() for c, b in zip(conditioned.slots, base.slots, strict=True))

    def form(self, conditioned: KVBlock, canonical: KVBlock) -> Patch:
        self.calls.append(("form", int(conditioned.positions[0]), conditioned.tokens))
        if not np.array_equal(conditioned.slots[0].flatten(), canonical.slots[0].flatten()):
            raise AssertionError("a patch of one chunk was formed with the canonical of another")
        return Patch(factors=(None,), kind="conditioned", energy=1.0)
