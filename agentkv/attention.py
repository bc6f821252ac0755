"""Attention of new tokens over the live window, without repeated KV heads and without masks.

Every row in front of the new tokens is visible to all of them, so that part needs no mask at all: the query
heads that share a KV head are stacked as rows of one matrix and read each key once. Only the new tokens among
themselves are causal. The two partial results meet in a log-sum-exp merge (Dao et al., 2022), which is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from agentkv_kernels.registry import pick
from torch import Tensor, nn

from agentkv.errors import UnsupportedModel

NAME = "agentkv"
RUNS = "agentkv_runs"


def partial_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """Attention over one part of the keys, with what a merge needs.

    q ``[1, H, M, D]``, k and v ``[1, H, N, D]``; returns (out ``[1, H, M, D]``, lse ``[1, H, M]``, natural
    log). ``causal`` lines up the ends: it takes M == N.
    """
    if q.device.type == "cpu":
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
    scores = torch.matmul(q, k.transpose(-1, -2)).float() * scale  # [1, H, M, N]
    if causal:
        hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
        scores.masked_fill_(hidden, -math.inf)
    lse = torch.logsumexp(scores, dim=-1)
    return torch.matmul((scores - lse[..., None]).exp().to(v.dtype), v), lse


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """q ``[1, Hq, T, D]`` are the last T of the keys k, v ``[1, H, P+T, D]``; returns ``[1, Hq, T, D]``."""
    heads, group, new = k.shape[1], q.shape[1] // k.shape[1], q.shape[2]
    past = k.shape[2] - new
    if past == 0 or new == 1:  # purely causal, or nothing hidden: one call does it
        return F.scaled_dot_product_attention(q, k, v, is_causal=new > 1, scale=scale, enable_gqa=group > 1)
    dim = q.shape[-1]
    rows = q.reshape(1, heads, group * new, dim)  # the query heads of a group, stacked as rows
    old, old_lse = partial_attention(rows, k[:, :, :past], v[:, :, :past], scale, causal=False)
    fresh_k = _per_query_head(k[:, :, past:], group)
    fresh_v = _per_query_head(v[:, :, past:], group)
    fresh, fresh_lse = partial_attention(q, fresh_k, fresh_v, scale, causal=True)
    merge = pick("merge", q.device)
    out, _ = merge(
        old.reshape(1, heads * group, new, -1), old_lse.reshape(1, heads * group, new), fresh, fresh_lse
    )
    return out.to(q.dtype)


def attend_runs(q: Tensor, k: Tensor, v: Tensor, scale: float, runs: Sequence[tuple[int, int]]) -> Tensor:
    """Several runs of new tokens in one forward, each seeing the rows in front of it and nothing behind.

    runs: (tokens, end) in order; the run's own keys are ``k[..., end - tokens : end, :]``. Since every
    run's fresh keys are in ``k`` before any of them attends, a later run sees what an earlier one just
    computed: the result is that of one forward per run, at the cost of one. q ``[1, Hq, ΣT, D]``; returns
    the same shape.
    """
    parts, done = [], 0
    for tokens, end in runs:
        parts.append(attend(q[:, :, done : done + tokens], k[:, :, :end], v[:, :, :end], scale))
        done += tokens
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _per_query_head(x: Tensor, group: int) -> Tensor:
    """``[1, H, T, D]`` seen as ``[1, H*group, T, D]``: only the new tokens, so that the copy is small."""
    return x if group == 1 else x.repeat_interleave(group, dim=1)


def attention_function(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The entry for transformers' attention interface; returns (``[1, T, Hq, D]``, None).

    kwargs carries ``agentkv_runs``, from `Runner.run` through the model: see `attend_runs`.
    """
    if RUNS not in kwargs:
        raise UnsupportedModel(
            got=f"{type(module).__name__}, which does not pass keyword arguments on to its attention",
            expected="a model whose layers hand them through",
            do="use a model that `agentkv models` lists as exact",
        )
    for name in ("sliding_window", "softcap", "s_aux"):
        if kwargs.get(name) is not None:
            raise UnsupportedModel(
                got=f"a layer with {name}={kwargs[name]!r}",
                expected="full causal attention",
                do="use a model that `agentkv models` lists as exact",
            )
    if attention_mask is not None or query.shape[0] != 1:
        raise UnsupportedModel(
            got="an attention mask or a batch above 1",
            expected="one window, no padding",
            do="run one window per forward",
        )
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    return attend_runs(query, key, value, scale, kwargs[RUNS]).transpose(1, 2), None
