"""The tensor backend: kernels for edits, the model for forwards. ``TritonBackend`` differs in its kernels
only."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from agentkv_kernels.registry import pick
from agentkv_kernels.rotate.torch import prepare
from torch import Tensor

from agentkv.attention import watched
from agentkv.cache import Run, WindowKV
from agentkv.forward import Runner
from agentkv.inputs import Ids
from agentkv.kv import KVBlock
from agentkv.layout import Layout
from agentkv.media import Media
from agentkv.patches import Patch, Recipe, deficit, turned

WATCHED = 64
"""Tokens at the end of a question whose attention says which rows matter to it."""


class TorchBackend:
    """Edits with torch, on any device.

    sink: ids that stand in front of every canonical (they carry the attention sink, so that no chunk grows
    its own).
    recipe: how patches are formed.
    """

    name = "torch"

    def __init__(self, runner: Runner, layout: Layout, sink: Ids, recipe: Recipe) -> None:
        parameter = next(runner.model.parameters())
        self.runner, self.layout, self.recipe = runner, layout, recipe
        self.dtype, self.device = parameter.dtype, parameter.device
        self.sink = sink
        self._sink_kv: KVBlock | None = None
        self._place = pick("place", self.device, backend=self.name)
        if self.device.type == "cpu":
            prepare(self.dtype)

    def new_kv(self, capacity: int) -> WindowKV:
        return WindowKV(self.layout, capacity, self.dtype, self.device)

    def read(self, kv: WindowKV, first: int, last: int) -> KVBlock:
        return kv.view(first, last).clone()

    def place(
        self,
        kv: WindowKV,
        row: int,
        block: KVBlock,
        patch: Patch | None = None,
        position: int | None = None,
    ) -> None:
        position = row if position is None else position
        delta = position - int(block.positions[0]) if block.tokens else 0
        plain = tuple(None for _ in block.slots)
        wide = torch.promote_types(self.dtype, torch.float32)
        turn = torch.full((1,), delta, device=self.device)  # one angle table row for all tokens
        ropes = self.layout.ropes(turn, wide) if delta else plain
        factors = turned(patch, self.layout, position) if patch else plain
        self._place(kv.slots, row, block.slots, ropes, factors)
        kv.positions[row : row + block.tokens] = block.positions + delta

    def prefill(self, kv: WindowKV, runs: Sequence[Run], keep: int) -> Tensor:
        return self.runner.run(runs, kv.live(), keep)

    def ask(self, kv: WindowKV, runs: Sequence[Run]) -> Tensor:
        with watched(min(len(runs[-1].ids), WATCHED)) as watch:
            self.prefill(kv, runs, keep=0)
        return watch.attention

    def canonical(self, ids: Ids, media: Media | None = None) -> KVBlock:
        first = len(self.sink)
        kv = self.new_kv(first + len(ids))
        kv.end = first + len(ids)
        if first:
            self.place(kv, 0, self._sink())
        self.prefill(kv, [Run(first, ids, media=media)], keep=0)
        return kv.view(first, kv.end).clone()

    def deficit(self, conditioned: KVBlock, base: KVBlock) -> tuple[Tensor, ...]:
        wide = torch.promote_types(self.dtype, torch.float32)
        moved = WindowKV(self.layout, conditioned.tokens, wide, self.device)
        # At the base's positions: the rope band of Δ would turn with the position it was measured at.
        block = KVBlock(tuple(s.to(wide) for s in conditioned.slots), conditioned.positions)
        self.place(moved, 0, block, position=int(base.positions[0]))
        return deficit(moved.slots, base.slots)

    def form(self, conditioned: KVBlock, canonical: KVBlock) -> Patch:
        delta = self.deficit(conditioned, canonical)
        return self.recipe.form(delta, "conditioned", int(canonical.positions[0]))

    def _sink(self) -> KVBlock:
        if self._sink_kv is None:
            kv = self.new_kv(len(self.sink))
            kv.end = len(self.sink)
            self.prefill(kv, [Run(0, self.sink)], keep=0)
            self._sink_kv = kv.view(0, kv.end)
        return self._sink_kv
