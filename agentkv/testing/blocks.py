"""KV to store and to compare."""

from __future__ import annotations

import torch

from agentkv.cache import WindowKV
from agentkv.kv import KVBlock


def rows(kv: WindowKV) -> list[int]:
    """Token ids in the live rows of a window of a `RecordingEngine`, in order."""
    found: list[int] = kv.slots[0][0, kv.start : kv.end, 0, 0].tolist()
    return found


def kv_block(tokens: int, seed: int = 0, layers: int = 2, first: int = 0) -> KVBlock:
    """Random fp32 KV ``[layers, tokens, 3, 4]`` in two slots; equal arguments give equal bits."""
    draw = torch.Generator().manual_seed(seed)
    slots = tuple(torch.randn(layers, tokens, 3, 4, generator=draw) for _ in range(2))
    return KVBlock(slots, torch.arange(first, first + tokens))


def same_bits(a: KVBlock, b: KVBlock) -> bool:
    """Equal in every bit, positions included."""
    return torch.equal(a.positions, b.positions) and all(
        torch.equal(x, y) for x, y in zip(a.slots, b.slots, strict=True)
    )
