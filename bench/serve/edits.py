"""Time to first token after an edit, against transformers' own re-prefill of the same tokens.

Every operation starts from the same window (a fork, its rows already its own), is checked against a
re-prefill, and is timed from the edit call to the logits that choose the first token.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from agentkv import Engine, Policy, Window
from agentkv.audit import divergence
from agentkv.calibrate import hardware
from bench.serve.windows import Case, build, stock_logits
from bench.timing import alternate, ratio

Edit = Callable[[Window, Case], None]


@dataclass(frozen=True)
class Operation:
    """An edit, what its plan must contain to count as that operation, and the KL it may not exceed (nats)."""

    name: str
    edit: Edit
    expects: tuple[str, ...]
    max_kl: float


def _slide(window: Window, case: Case) -> None:
    window.evict(case.documents[0])


def _hole(window: Window, case: Case) -> None:
    window.evict(case.documents[2])


def _recall(window: Window, case: Case) -> None:
    window.recall(case.spare)


def _reorder(window: Window, case: Case) -> None:
    window.reorder([case.documents[i] for i in (3, 0, 4, 1, 2)])


def _recurring(window: Window, case: Case) -> None:
    window.evict(case.documents[0])
    window.recall(case.spare, before=case.documents[1])


def _nothing(window: Window, case: Case) -> None:
    return None


OPERATIONS = (
    Operation("question", _nothing, ("keep",), 1e-6),
    Operation("slide", _slide, ("rotate",), 0.1),
    Operation("hole", _hole, ("rotate",), 0.1),
    Operation("recall_stored_patch", _recall, ("apply_patch",), 0.1),
    Operation("reorder_stored_patches", _reorder, ("apply_patch",), 0.1),
    Operation("recurring_antecedent_stored_patches", _recurring, ("apply_patch",), 0.1),
)


def prepare(case: Case) -> None:
    """Give the store what recurring edits find there: conditioned KV of each wanted order, settled into
    patches."""
    for edit in (_recall, _reorder, _recurring):
        with case.window.fork() as twin:
            twin.policy = Policy(name="exact")
            edit(twin, case)
            twin.commit()
            for handle in [e.handle for e in twin.content.live() if not e.pinned]:
                twin.evict(handle)  # exact KV about to be lost goes to the store
            twin.commit()
            twin.settle()


def _turn(case: Case, operation: Operation, policy: str) -> tuple[Window, Callable[[], torch.Tensor]]:
    """A fork that is ready to be edited, and the timed part: edit, plan, execute, question, logits
    [vocab]."""
    twin = case.window.fork()
    twin.kv.own()
    twin.policy = Policy.parse(policy)

    def run() -> torch.Tensor:
        operation.edit(twin, case)
        twin.append_ids(case.question, kind="user")
        twin.commit(headroom=1, keep=1)
        logits = twin.last_outcome.logits
        assert logits is not None  # the question is always prefilled
        return logits[-1]

    return twin, run


def measure(engine: Engine, size: int, rounds: int, threads: int) -> list[dict[str, Any]]:
    """One row per operation at one window length."""
    case = build(engine, size)
    prepare(case)
    return [_row(engine, case, operation, size, rounds, threads) for operation in OPERATIONS]


def _row(
    engine: Engine, case: Case, operation: Operation, size: int, rounds: int, threads: int
) -> dict[str, Any]:
    twin, run = _turn(case, operation, "balanced")
    found = run()
    plan, ids = twin.last_plan, twin.ids()
    assert plan is not None
    names = {op.op for op in plan.ops}
    kl = float(divergence(stock_logits(engine.loaded.model, ids)[None], found[None])[0])
    correct = kl <= operation.max_kl and set(operation.expects) <= names
    twin.close()
    edits: list[float] = []
    ready: list[tuple[Window, Callable[[], torch.Tensor]]] = []

    def ours() -> None:
        window, turn = ready[-1]
        turn()
        ms = window.last_outcome.ms
        edits.append(sum(value for name, value in ms.items() if name != "prefill"))

    laps: dict[str, list[float]] = {"ours": [], "stock": []}
    for _ in range(rounds + 1):
        ready.append(_turn(case, operation, "balanced"))
        lap = alternate({"ours": ours, "stock": lambda: stock_logits(engine.loaded.model, ids)}, 1, warm=0)
        laps["ours"] += lap["ours"]
        laps["stock"] += lap["stock"]
        ready.pop()[0].close()
    ours_ms, stock_ms = laps["ours"][1:], laps["stock"][1:]  # the first round warms up
    return {
        "op": operation.name,
        "window": size,
        "threads": threads,
        "ratio_vs_reprefill": round(ratio(stock_ms, ours_ms), 2),
        "ttft_ms": round(statistics.median(ours_ms), 2),
        "reprefill_ms": round(statistics.median(stock_ms), 1),
        "edit_ms": round(statistics.median(edits[1:]), 2),
        "edit_share_of_ttft": round(statistics.median(np.array(edits[1:]) / np.array(ours_ms)), 4),
        "kl": kl,
        "tokens": plan.tokens(),
        "correct": correct,
        "hardware": hardware(),
    }
