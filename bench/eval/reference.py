"""The yardstick side of the quality runs: plain transformers forwards, independent of the runtime.

Every window is held as KVBlocks per chunk. Prefills, questions and recomputed rows go through the
model's own forward; rotation is written out here with fp64 angles. Only what is being measured, the
patches, comes from agentkv.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from agentkv.kv import KVBlock
from agentkv.linear import routable_linears, routed


class _Rows(DynamicCache):
    """A cache in which new KV overwrites the rows it was computed for instead of growing the cache."""

    def __init__(self, window: KVBlock, rows: Tensor) -> None:
        super().__init__(ddp_cache_data=_layers([[window]]))
        self.rows = rows

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        layer = self.layers[layer_idx]
        layer.keys = layer.keys.index_copy(2, self.rows, key_states)
        layer.values = layer.values.index_copy(2, self.rows, value_states)
        return layer.keys, layer.values


class Reference:
    """A causal LM with RoPE on whole heads ("half" style) and what the runs ask of it."""

    def __init__(self, model: Any) -> None:
        self.model = model.eval()
        self.inv_freq = model.model.rotary_emb.inv_freq.double()
        self._linears = routable_linears(model)

    def prefill(self, ids: Sequence[int]) -> KVBlock:
        """KV of `ids` standing at positions 0, 1, ...: slots [L, T, H, D]."""
        with self._fast():
            cache = self.model.model(torch.tensor([ids]), use_cache=True).cache
        slots = [
            torch.stack([getattr(layer, name)[0] for layer in cache.layers]) for name in ("keys", "values")
        ]
        return KVBlock(tuple(s.transpose(1, 2).contiguous() for s in slots), torch.arange(len(ids)))

    def move(self, block: KVBlock, start: int) -> KVBlock:
        """R(δ): the block with its first token at position `start`."""
        delta = start - int(block.positions[0])
        angle = self.inv_freq * delta
        keys = block.slots[0]
        cos, sin = angle.cos().to(keys.dtype), angle.sin().to(keys.dtype)
        a, b = keys.chunk(2, dim=-1)
        turned = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
        return KVBlock((turned, block.slots[1]), block.positions + delta)

    def logits(self, window: Sequence[KVBlock], ids: Sequence[int], last: int = 0) -> Tensor:
        """[len(ids), vocab] next-token logits of `ids` put behind the window, teacher-forced.

        last: only those of the last so many tokens; 0 means all.
        """
        return self.ask([window], ids, last)[0]

    def ask(self, windows: Sequence[Sequence[KVBlock]], ids: Sequence[int], last: int = 0) -> Tensor:
        """`logits` behind several windows of one length, in one forward: [windows, tokens, vocab]."""
        start = sum(b.tokens for b in windows[0])
        batch = len(windows)
        cache = DynamicCache(ddp_cache_data=_layers(windows))
        with self._fast():
            return self.model(
                torch.tensor([ids]).expand(batch, -1),
                cache=cache,
                position_ids=torch.arange(start, start + len(ids)).expand(batch, -1),
                use_cache=True,
                logits_to_keep=last,
            ).logits

    def greedy(self, window: Sequence[KVBlock], ids: Sequence[int], count: int) -> list[int]:
        """`count` greedy tokens behind window and `ids`."""
        start = sum(b.tokens for b in window)
        cache, step, out = DynamicCache(ddp_cache_data=_layers([window])), list(ids), []
        with self._fast():
            for _ in range(count):
                at = torch.arange(start, start + len(step))[None]
                logits = self.model(torch.tensor([step]), cache=cache, position_ids=at, use_cache=True).logits
                start += len(step)
                step = [int(logits[0, -1].argmax())]
                out += step
        return out

    def recompute(self, window: KVBlock, ids: Sequence[int], rows: Tensor) -> KVBlock:
        """The window with the KV of `rows` (indices into `ids`) computed afresh, in context.

        Every row attends the whole causal prefix: fresh KV where a row was recomputed, what stands in
        the window elsewhere. Executed layer-tokens: L · len(rows).
        """
        rows = rows.sort().values
        mask = torch.arange(len(ids))[None, :] <= rows[:, None]
        cache = _Rows(window, rows)
        with self._fast():
            self.model.model(
                torch.tensor([ids])[:, rows],
                cache=cache,
                position_ids=rows[None],
                attention_mask=mask[None, None],
                use_cache=True,
            )
        slots = [torch.stack([getattr(layer, n)[0] for layer in cache.layers]) for n in ("keys", "values")]
        return KVBlock(tuple(s.transpose(1, 2).contiguous() for s in slots), window.positions)

    @contextmanager
    def _fast(self) -> Iterator[None]:
        with torch.inference_mode(), routed(self._linears):
            yield


def join(blocks: Sequence[KVBlock]) -> KVBlock:
    """One block of blocks that stand one behind the other."""
    slots = tuple(torch.cat(parts, dim=1) for parts in zip(*(b.slots for b in blocks), strict=True))
    return KVBlock(slots, torch.cat([b.positions for b in blocks]))


def split(block: KVBlock, lengths: Sequence[int]) -> list[KVBlock]:
    """Copies of consecutive parts of `block`."""
    parts, start = [], 0
    for length in lengths:
        parts.append(block.part(start, start + length).clone())
        start += length
    return parts


def _layers(windows: Sequence[Sequence[KVBlock]]) -> list[tuple[Tensor, Tensor]]:
    """Keys and values [windows, H, T, D] per layer, as transformers holds them."""
    if not windows[0]:
        return []
    slots = []
    for slot in (0, 1):
        rows = [torch.cat([b.slots[slot] for b in window], dim=1) for window in windows]  # [L, T, H, D]
        slots.append(torch.stack(rows, dim=1).transpose(2, 3))
    return list(zip(*(s.unbind(0) for s in slots), strict=True))
