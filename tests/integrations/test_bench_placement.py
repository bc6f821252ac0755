"""Placement through the embedded model: fewer tokens are computed and fewer patches formed, at no more KL."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from agentkv_orchestrator.policy import Policy
from agentkv_orchestrator.traces import generate

from agentkv.models import embedded, hf
from bench.eval.placement import Arm, play, texts

TOKENS, TURNS, EVERY = 128, 12, 4


@pytest.mark.slow
def test_documents_ranked_anew_cost_less_where_they_are_placed() -> None:
    torch.set_num_threads(1)
    loaded = hf.load(embedded.ensure())
    trace = generate("rerank", TURNS, seed=1)
    shown, policy = texts(trace, loaded.tokenizer, TOKENS), Policy()
    arms = [Arm(name, loaded, shown, policy, seed=0) for name in ("arrival", "placed")]
    rows: list[dict[str, Any]] = []
    play(trace, arms, EVERY, rows.extend)  # refuses to go on where a fresh window is not exact
    last = rows[-len(arms) * TURNS :]
    arrival, placed = ([row for row in last if row["arm"] == arm.name] for arm in arms)
    assert len(arrival) == len(placed) == TURNS

    def mean(own: list[dict[str, Any]], name: str) -> float:
        found = [row[name] for row in own if name in row]
        return sum(found) / len(found)

    assert mean(placed, "computed") <= 0.7 * mean(arrival, "computed")
    assert mean(placed, "predicted_ms") <= 0.7 * mean(arrival, "predicted_ms")
    for own in (arrival, placed):
        assert all(row["predicted_kl"] <= policy.kl_budget + 1e-6 for row in own)
        assert mean(own, "kl") <= policy.kl_budget
    for arm in arms:
        arm.engine.close()
