"""Attention to the last rows only (sliding windows), or with capped logits: block by block of the queries.

A block of B queries sees a band of at most W + B rows, under a mask of that size: T·(W + B) work for T
tokens, and never a mask of T × N. The window counts rows, as transformers' masks do: when rows in between
are dropped, tokens that had slid out of it slide back in.
"""

from __future__ import annotations

import torch
from torch import Tensor

from agentkv.attention.partial import partial_attention

BLOCK = 128
"""Queries that share a mask. More of them waste work on a window's far end, fewer are slow to start."""


def attend_band(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    causal: bool = True,
    window: int | None = None,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """As `attend_full`, with query row r seeing rows r - window + 1 up to r (causal) or to the last one.

    window: rows seen, the query's own included; None: all. softcap: see `partial_attention`.
    """
    new, every = q.shape[2], k.shape[2]
    outs, sums = [], []
    for first in range(0, new, BLOCK):
        last = min(first + BLOCK, new)
        row = every - new + first  # of the block's first query
        low = max(0, row - window + 1) if window else 0
        stop = every - new + last if causal else every
        hidden = _hidden(row - low, last - first, stop - low, causal, window, q.device)
        keys, values = k[:, :, low:stop], v[:, :, low:stop]
        out, lse = partial_attention(q[:, :, first:last], keys, values, scale, hidden=hidden, softcap=softcap)
        outs.append(out)
        sums.append(lse)
    return torch.cat(outs, 2), torch.cat(sums, 2)


def _hidden(
    row: int, queries: int, keys: int, causal: bool, window: int | None, device: torch.device
) -> Tensor | None:
    """bool ``[queries, keys]``: what queries from ``row`` on, counted in these keys, must not see; None: all
    is seen."""
    if queries == 1 or (not causal and window is None):
        return None
    ahead = torch.arange(row, row + queries, device=device)[:, None] - torch.arange(keys, device=device)
    hidden = ahead < 0 if causal else torch.zeros_like(ahead, dtype=torch.bool)
    return hidden if window is None else hidden | (ahead >= window)
