"""Attention of rows that stand here and there, each to all in front of it: one pass under a mask.

A pass a row would read the keys once for each and start as many kernels; here the rows of a repair cost what
one run of as many tokens costs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from agentkv.attention.partial import partial_attention


def attend_scattered(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    rows: Tensor,
    window: int | None = None,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """As `agentkv.attention.full.attend_full`, for query t standing at row ``rows[t]`` of the keys.

    q ``[1, Hq, T, D]``, k ``[1, H, N, D]``, v ``[1, H, N, Dv]``, rows int64 ``[T]``. window, softcap: see
    `agentkv.attention.band.attend_band`.
    """
    ahead = rows[:, None] - torch.arange(k.shape[2], device=q.device)
    hidden = ahead < 0 if window is None else (ahead < 0) | (ahead >= window)
    return partial_attention(q, k, v, scale, hidden=hidden, softcap=softcap)
