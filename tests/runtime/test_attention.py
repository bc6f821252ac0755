"""Attention without masks against softmax(QKᵀ)V written out, and what it refuses."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from agentkv.attention import Rule, Span, attend_runs, attention_function, band, scattered, seeing
from agentkv.attention.full import attend_at_once, attend_full
from agentkv.attention.partial import partial_attention
from agentkv.errors import Busy, UnsupportedModel
from tests.tolerances import KV, kv_error

HEADS = [(6, 2), (5, 5), (9, 3), (4, 1)]
"""(query heads, KV heads)"""

DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def draw(heads: int, tokens: int, dtype: torch.dtype, seed: int, dim: int = 8) -> Tensor:
    noise = torch.Generator().manual_seed(seed)
    return torch.randn(1, heads, tokens, dim, generator=noise, dtype=torch.float64).to(dtype)


def seen(new: int, every: int, window: int | None = None, both: tuple[tuple[int, int], ...] = ()) -> Tensor:
    """bool [new, every], pair by pair: which keys the last `new` rows see."""
    first = every - new
    pairs = torch.zeros(new, every, dtype=torch.bool)
    for query in range(first, every):
        for key in range(every):
            together = any(a <= query - first < b and a <= key - first < b for a, b in both)
            near = window is None or key > query - window
            pairs[query - first, key] = (key <= query or together) and near
    return pairs


def naive(q: Tensor, k: Tensor, v: Tensor, rule: Rule, both: tuple[tuple[int, int], ...] = ()) -> Tensor:
    """Every query head with its own copy of the keys, and a mask, in fp64; q are the last of the keys."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.double() for x in (q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)))
    scores = q @ k.mT * rule.scale
    if rule.softcap is not None:
        scores = rule.softcap * torch.tanh(scores / rule.softcap)
    scores = scores.masked_fill(~seen(q.shape[2], k.shape[2], rule.window, both), -torch.inf)
    if rule.sinks is None:
        return scores.softmax(-1) @ v
    sinks = rule.sinks.double()[None, :, None, None].expand(1, -1, q.shape[2], 1)
    return torch.cat((scores, sinks), -1).softmax(-1)[..., :-1] @ v


RULES = {
    "plain": Rule(0.3),
    "window": Rule(0.3, window=5),
    "window of one": Rule(0.3, window=1),
    "window beyond the rows": Rule(0.3, window=500),
    "softcap": Rule(0.9, softcap=1.5),
    "softcap in a window": Rule(0.9, window=4, softcap=1.5),
}


def with_sinks(rule: Rule, heads: int) -> Rule:
    return Rule(rule.scale, rule.window, rule.softcap, torch.linspace(-1, 3, heads, dtype=torch.float64))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("query_heads", "heads"), HEADS)
@pytest.mark.parametrize(("past", "new"), [(0, 1), (0, 7), (5, 1), (1, 6), (33, 17)])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("sinks", [False, True])
def test_attention_of_one_run(
    query_heads: int, heads: int, past: int, new: int, dtype: torch.dtype, rule: str, sinks: bool
) -> None:
    how = with_sinks(RULES[rule], query_heads) if sinks else RULES[rule]
    q = draw(query_heads, new, dtype, 0)
    k, v = draw(heads, past + new, dtype, 1), draw(heads, past + new, dtype, 2)
    found = attend_runs(q, k, v, how, [(new, past + new)])
    assert found.dtype == dtype
    assert kv_error(found, naive(q, k, v, how)) <= KV[dtype]


@pytest.mark.parametrize("rule", ["window", "softcap", "softcap in a window"])
def test_what_a_rule_changes_shows(rule: str) -> None:
    """Otherwise the test above would pass without it."""
    q, k, v = (draw(3, 20, torch.float64, seed) for seed in range(3))
    plain = Rule(RULES[rule].scale)
    assert kv_error(naive(q, k, v, RULES[rule]), naive(q, k, v, plain)) > 1e-2
    assert kv_error(naive(q, k, v, with_sinks(plain, 3)), naive(q, k, v, plain)) > 1e-2


@pytest.mark.parametrize("window", [None, 3, 40, 300])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_runs_longer_than_a_block(window: int | None, softcap: float | None) -> None:
    rule = Rule(0.4, window=window, softcap=softcap)
    q = draw(6, 2 * band.BLOCK + 9, torch.float64, 0)
    k, v = (draw(2, q.shape[2] + 55, torch.float64, seed) for seed in (1, 2))
    found = attend_runs(q, k, v, rule, [(q.shape[2], k.shape[2])])
    assert kv_error(found, naive(q, k, v, rule)) <= KV[torch.float64]


@pytest.mark.parametrize(("dim", "value_dim"), [(20, 14), (8, 24)])
@pytest.mark.parametrize("rule", RULES)
def test_values_of_another_width_than_keys(dim: int, value_dim: int, rule: str) -> None:
    q, k = draw(6, 9, torch.float64, 0, dim), draw(2, 30, torch.float64, 1, dim)
    v = draw(2, 30, torch.float64, 2, value_dim)
    found = attend_runs(q, k, v, RULES[rule], [(9, 30)])
    assert found.shape == (1, 6, 9, value_dim)
    assert kv_error(found, naive(q, k, v, RULES[rule])) <= KV[torch.float64]


@pytest.mark.parametrize(("query_heads", "heads"), HEADS)
@pytest.mark.parametrize(
    ("past", "new", "causal"), [(0, 9, True), (20, 1, True), (20, 9, False), (0, 9, False)]
)
def test_attention_at_once_is_attention(
    query_heads: int, heads: int, past: int, new: int, causal: bool
) -> None:
    """What a GPU does where nothing is to be merged."""
    q = draw(query_heads, new, torch.float64, 0)
    k, v = (draw(heads, past + new, torch.float64, seed) for seed in (1, 2))
    found = attend_at_once(q, k, v, 0.3, causal)
    assert kv_error(found, naive(q, k, v, Rule(0.3), () if causal else ((0, new),))) <= KV[torch.float64]
    assert kv_error(found, attend_full(q, k, v, 0.3, causal)[0]) <= KV[torch.float64]


def test_rows_that_are_not_contiguous() -> None:
    """The cache hands out transposed views of its rows."""
    rows = torch.randn(2, 40, 3, 8, dtype=torch.float64)
    k, v = (rows[i].transpose(0, 1)[None, :, 4:30] for i in range(2))
    q = draw(6, 9, torch.float64, 0)
    for rule in RULES.values():
        found = attend_runs(q, k, v, rule, [(9, 26)])
        assert kv_error(found, naive(q, k, v, rule)) <= KV[torch.float64]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "runs",
    [
        [(4, 4)],
        [(3, 9), (5, 20)],
        [(2, 2), (1, 10), (6, 31)],
        [(3, 9), (1, 12), (20, 40), (2, 50), (1, 60)],
        [(18, 18), (1, 30), (17, 60)],
    ],
)
def test_runs_are_one_attention_each(runs: list[tuple[int, int]], rule: str) -> None:
    every = runs[-1][1]
    k, v = draw(2, every, torch.float64, 1), draw(2, every, torch.float64, 2)
    q = draw(4, sum(tokens for tokens, _ in runs), torch.float64, 3)
    found, done = attend_runs(q, k, v, RULES[rule], runs), 0
    for tokens, end in runs:
        part = slice(done, done + tokens)
        wanted = naive(q[:, :, part], k[:, :, :end], v[:, :, :end], RULES[rule])
        assert kv_error(found[:, :, part], wanted) <= KV[torch.float64]
        done += tokens


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("both", [((0, 6),), ((2, 9),), ((1, 4), (4, 7)), ((3, 5), (8, 11))])
def test_ranges_that_see_each_other_both_ways(rule: str, both: tuple[tuple[int, int], ...]) -> None:
    q = draw(6, 11, torch.float64, 0)
    k, v = (draw(2, 31, torch.float64, seed) for seed in (1, 2))
    found = attend_runs(q, k, v, RULES[rule], [Span(11, 31, both)])
    wanted = naive(q, k, v, RULES[rule], both)
    assert kv_error(found, wanted) <= KV[torch.float64]
    if RULES[rule].window != 1:
        causal = naive(q, k, v, RULES[rule])
        assert kv_error(wanted, causal) > 1e-2


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_partial_attention_gives_the_log_sum_of_its_weights(
    causal: bool, dtype: torch.dtype, softcap: float | None
) -> None:
    q, k, v = (draw(3, 6, dtype, seed) for seed in range(3))
    _, lse = partial_attention(q, k, v, 0.4, causal, softcap=softcap)
    scores = q.double() @ k.double().mT * 0.4
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if causal:
        scores = scores.masked_fill(~seen(6, 6), -torch.inf)
    assert kv_error(lse, scores.logsumexp(-1)) <= KV[dtype]


def test_a_window_costs_no_more_than_its_band(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call sees more than W + B keys, and none is as large as the context."""
    widest = []

    def spy(q: Tensor, k: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        widest.append((q.shape[2], k.shape[2]))
        return partial_attention(q, k, *args, **kwargs)

    monkeypatch.setattr(band, "partial_attention", spy)
    q, (k, v) = draw(2, 500, torch.float32, 0), (draw(2, 3000, torch.float32, s) for s in (1, 2))
    attend_runs(q, k, v, Rule(0.3, window=64), [(500, 3000)])
    assert max(queries for queries, _ in widest) <= band.BLOCK
    assert max(keys for _, keys in widest) < 64 + band.BLOCK


def test_rows_here_and_there_share_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []

    def spy(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        passes.append(args[0].shape[2])
        return partial_attention(*args, **kwargs)

    monkeypatch.setattr(scattered, "partial_attention", spy)
    q, (k, v) = draw(2, 50, torch.float32, 0), (draw(2, 300, torch.float32, s) for s in (1, 2))
    attend_runs(q, k, v, Rule(0.3), [(1, 4 * row + 2) for row in range(50)])
    assert passes == [50]


def test_a_full_run_needs_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    masks = []

    def spy(*args: Any, hidden: Tensor | None = None, **kwargs: Any) -> tuple[Tensor, Tensor]:
        masks.append(hidden)
        return partial_attention(*args, hidden=hidden, **kwargs)

    monkeypatch.setattr("agentkv.attention.full.partial_attention", spy)
    attend_full(*(draw(2, n, torch.float32, n) for n in (9, 40, 40)), 0.3)
    assert masks == [None, None]


def call(module: nn.Module | None = None, runs: Any = ((2, 2),), **problem: Any) -> tuple[Tensor, None]:
    x = torch.zeros(1, 4, 2, 8)
    given: dict[str, Any] = {"query": x, "key": x, "value": x, "attention_mask": None, **problem}
    with seeing(runs):
        return attention_function(module or nn.Identity(), **given)


@pytest.mark.parametrize(
    ("problem", "named"),
    [
        ({"attention_mask": torch.zeros(1, 1, 2, 2)}, "an attention mask"),
        ({"query": torch.zeros(2, 4, 2, 8)}, "batch above 1"),
    ],
)
def test_what_is_not_attention_over_a_window_is_refused(problem: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named) as caught:
        call(**problem)
    assert caught.value.expected
    assert caught.value.do


def test_a_layer_that_sees_both_ways_is_refused() -> None:
    module = nn.Identity()
    module.is_causal = False
    with pytest.raises(UnsupportedModel, match="see each other in both directions"):
        call(module)


def test_a_forward_from_elsewhere_is_refused() -> None:
    """Another thread calls the model itself while agentkv runs it: what it attends to is not ours to say."""
    caught = []

    def elsewhere() -> None:
        x = torch.zeros(1, 4, 2, 8)
        try:
            attention_function(nn.Linear(1, 1), x, x, x, None)
        except Busy as error:
            caught.append(error)

    with seeing([(2, 2)]):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert "Linear" in str(caught[0])


def test_nothing_of_a_forward_is_left_behind() -> None:
    with pytest.raises(RuntimeError, match="fails"), seeing([(2, 2)]):
        raise RuntimeError("fails")
    with pytest.raises(Busy):
        attention_function(nn.Identity(), *[torch.zeros(1, 4, 2, 8)] * 3, None)


def test_the_model_scale_is_used_when_given() -> None:
    q, k, v = (draw(2, 5, torch.float64, seed) for seed in range(3))
    for scaling, wanted in ((0.7, 0.7), (None, 8**-0.5)):
        with seeing([(5, 5)]):
            found, _ = attention_function(nn.Identity(), q, k, v, None, scaling=scaling)
        assert kv_error(found.transpose(1, 2), naive(q, k, v, Rule(wanted))) <= KV[torch.float64]
