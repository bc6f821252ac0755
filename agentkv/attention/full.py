"""Attention to all rows in front: one part without a mask, one causal part, merged.

Every row in front of the new tokens is visible to all of them, so that part needs no mask at all. Only the
new tokens among themselves are causal. The two partial results meet in a log-sum-exp merge (Dao et al.,
2022), which is exact.
"""

from __future__ import annotations

import torch.nn.functional as F
from agentkv_kernels.registry import pick
from torch import Tensor

from agentkv.attention.partial import partial_attention


def attend_full(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool = True) -> tuple[Tensor, Tensor]:
    """q ``[1, Hq, T, D]`` are the last T of the keys k ``[1, H, P+T, D]``; v ``[1, H, P+T, Dv]``.

    causal: False lets the new tokens see each other both ways. Returns (out ``[1, Hq, T, Dv]``, lse ``[1, Hq,
    T]``).
    """
    new = q.shape[2]
    past = k.shape[2] - new
    if not causal or new == 1:  # nothing is hidden
        return partial_attention(q, k, v, scale)
    fresh, fresh_lse = partial_attention(q, k[:, :, past:], v[:, :, past:], scale, causal=True)
    if past == 0:
        return fresh, fresh_lse
    old, old_lse = partial_attention(q, k[:, :, :past], v[:, :, :past], scale)
    return pick("merge", q.device)(old, old_lse, fresh, fresh_lse)


def attend_at_once(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool = True) -> Tensor:
    """`attend_full` where nothing is to be merged and nobody asks for sums: T is 1 or all keys, or not
    causal.

    torch's own attention, which on a GPU never holds the scores. On a CPU `attend_full` is the faster one,
    because the query heads of a group read each key once.
    """
    grouped = q.shape[1] != k.shape[1]
    hides = causal and q.shape[2] > 1
    return F.scaled_dot_product_attention(q, k, v, is_causal=hides, scale=scale, enable_gqa=grouped)
