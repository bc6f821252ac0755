"""Attention without masks against softmax(QKᵀ)V written out, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from agentkv.attention import RUNS, attend, attend_runs, attention_function, partial_attention
from agentkv.errors import UnsupportedModel
from tests.tolerances import KV, kv_error

HEADS = [(6, 2), (5, 5), (9, 3), (4, 1)]
"""(query heads, KV heads)"""


def draw(heads: int, tokens: int, dtype: torch.dtype, seed: int, dim: int = 8) -> Tensor:
    noise = torch.Generator().manual_seed(seed)
    return torch.randn(1, heads, tokens, dim, generator=noise, dtype=torch.float64).to(dtype)


def naive(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Every query head with its own copy of the keys and a mask, in fp64; q are the last of the keys."""
    group, (new, every) = q.shape[1] // k.shape[1], (q.shape[2], k.shape[2])
    q, k, v = (x.double() for x in (q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)))
    hidden = torch.ones(new, every, dtype=torch.bool).triu(every - new + 1)
    return (q @ k.mT * scale).masked_fill(hidden, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("query_heads", "heads"), HEADS)
@pytest.mark.parametrize(("past", "new"), [(0, 1), (0, 7), (5, 1), (1, 6), (33, 17)])
def test_attend_is_causal_attention(
    query_heads: int, heads: int, past: int, new: int, dtype: torch.dtype
) -> None:
    q = draw(query_heads, new, dtype, 0)
    k, v = draw(heads, past + new, dtype, 1), draw(heads, past + new, dtype, 2)
    found = attend(q, k, v, 0.3)
    assert found.dtype == dtype
    assert kv_error(found, naive(q, k, v, 0.3)) <= KV[dtype]


def test_attend_reads_rows_that_are_not_contiguous() -> None:
    """The cache hands out transposed views of its rows."""
    rows = torch.randn(2, 40, 3, 8, dtype=torch.float64)
    k, v = (rows[i].transpose(0, 1)[None, :, 4:30] for i in range(2))
    q = draw(6, 9, torch.float64, 0)
    assert kv_error(attend(q, k, v, 0.2), naive(q, k, v, 0.2)) <= KV[torch.float64]


@pytest.mark.parametrize("runs", [[(4, 4)], [(3, 9), (5, 20)], [(2, 2), (1, 10), (6, 31)]])
def test_runs_are_one_attention_each(runs: list[tuple[int, int]]) -> None:
    every = runs[-1][1]
    k, v = draw(2, every, torch.float64, 1), draw(2, every, torch.float64, 2)
    q = draw(4, sum(tokens for tokens, _ in runs), torch.float64, 3)
    found, done = attend_runs(q, k, v, 0.5, runs), 0
    for tokens, end in runs:
        part = slice(done, done + tokens)
        wanted = naive(q[:, :, part], k[:, :, :end], v[:, :, :end], 0.5)
        assert kv_error(found[:, :, part], wanted) <= KV[torch.float64]
        done += tokens


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_partial_attention_gives_the_log_sum_of_its_weights(causal: bool, dtype: torch.dtype) -> None:
    q, k, v = (draw(3, 6, dtype, seed) for seed in range(3))
    _, lse = partial_attention(q, k, v, 0.4, causal)
    scores = q.double() @ k.double().mT * 0.4
    if causal:
        scores = scores.masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), -torch.inf)
    assert kv_error(lse, scores.logsumexp(-1)) <= KV[dtype]


@pytest.mark.parametrize(
    ("problem", "named"),
    [
        ({"sliding_window": 128}, "sliding_window=128"),
        ({"softcap": 30.0}, "softcap=30.0"),
        ({"s_aux": 1}, "s_aux=1"),
        ({"attention_mask": torch.zeros(1, 1, 2, 2)}, "an attention mask"),
        ({"query": torch.zeros(2, 4, 2, 8)}, "batch above 1"),
        ({RUNS: None}, "Linear"),
    ],
)
def test_what_is_not_full_causal_attention_is_refused(problem: dict[str, Any], named: str) -> None:
    x = torch.zeros(1, 4, 2, 8)
    given: dict[str, Any] = {"query": x, "key": x, "value": x, "attention_mask": None, RUNS: [(2, 2)]}
    given |= problem
    if given[RUNS] is None:
        del given[RUNS]
    with pytest.raises(UnsupportedModel, match=named) as caught:
        attention_function(nn.Linear(1, 1), **given)
    assert caught.value.expected
    assert caught.value.do


def test_the_model_scale_is_used_when_given() -> None:
    q, k, v = (draw(2, 5, torch.float64, seed) for seed in range(3))
    runs: dict[str, Any] = {RUNS: [(5, 5)]}
    for scaling, wanted in ((0.7, 0.7), (None, 8**-0.5)):
        found, _ = attention_function(nn.Identity(), q, k, v, None, scaling=scaling, **runs)
        assert kv_error(found.transpose(1, 2), naive(q, k, v, wanted)) <= KV[torch.float64]
