"""Softmax attention over a part of the keys, with the log-sum-exp that merging needs."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def partial_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    causal: bool = False,
    hidden: Tensor | None = None,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention over these keys alone. Query heads are a multiple of KV heads; no key is read twice for it.

    q ``[1, Hq, M, D]``, k ``[1, H, N, D]``, v ``[1, H, N, Dv]``; returns (out ``[1, Hq, M, Dv]``, lse ``[1,
    Hq, M]``: natural log, fp32 or fp64). causal: lines up the ends, and takes M == N. hidden: bool ``[M,
    N]``, pairs that do not see each other; no row may be hidden from everything. softcap: c in c·tanh(score
    / c).
    """
    if q.device.type == "cpu" and softcap is None:
        width, dim = max(q.shape[-1], v.shape[-1]), v.shape[-1]
        # Zeros change no score and no sum of the others, and the kernel wants one width.
        out, lse = _flash(_widened(q, width), _widened(k, width), _widened(v, width), scale, causal, hidden)
        return out[..., :dim], lse
    if causal:
        hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
    return _matmul(q, k, v, scale, hidden, softcap)


def _flash(
    q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, hidden: Tensor | None
) -> tuple[Tensor, Tensor]:
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    if causal:
        return flash(q, k, v, 0.0, True, scale=scale)
    bias = None
    if hidden is not None:
        bias = torch.zeros(hidden.shape, dtype=q.dtype).masked_fill_(hidden, -math.inf)
        bias = bias.repeat(q.shape[1] // k.shape[1], 1)[None, None]  # [1, 1, group*M, N]
    out, lse = flash(_stacked(q, k.shape[1]), k, v, 0.0, False, attn_mask=bias, scale=scale)
    return out.reshape(q.shape), lse.reshape(q.shape[:-1])


def _matmul(
    q: Tensor, k: Tensor, v: Tensor, scale: float, hidden: Tensor | None, softcap: float | None
) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = torch.matmul(_stacked(q, k.shape[1]), k.mT).to(wide) * scale  # [1, H, group*M, N]
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if hidden is not None:
        scores.masked_fill_(hidden.repeat(q.shape[1] // k.shape[1], 1), -math.inf)
    lse = torch.logsumexp(scores, dim=-1)
    out = torch.matmul((scores - lse[..., None]).exp().to(v.dtype), v)
    return out.reshape(*q.shape[:-1], v.shape[-1]), lse.reshape(q.shape[:-1])


def _stacked(q: Tensor, heads: int) -> Tensor:
    """``[1, Hq, M, D]`` as ``[1, H, group*M, D]``: the query heads of a group are rows of one matrix, and
    read each key once."""
    return q.reshape(1, heads, -1, q.shape[-1])


def _widened(x: Tensor, width: int) -> Tensor:
    return x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))
