"""Does the cheap test of whether a message can go predict what a re-prefill without it says?

    python -m bench.eval.disposability --windows 24 --threads 1

Windows of four documents and a question about one of them. The truth about each document: KL over the greedy
answer between a re-prefill with it and one without it. Against it: `Window.disposable`, the same with the
document's dependents shown as canonicals, the attention that the question pays to the document, its age, and
chance. Every finished window is written; a run that was stopped goes on.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from agentkv_orchestrator.policy import Policy
from torch import Tensor

from agentkv.audit import divergence
from agentkv.cache import Run
from agentkv.disposal import Disposal, answered, compared, retold
from agentkv.queries import asked_of
from bench.eval.agent_windows import ANSWER, SIZE, Case, gate, run


def main() -> None:
    """Parse arguments, then every window."""
    run(measured, __doc__ or "", Path("bench/results/disposability.json"))


def measured(case: Case) -> dict[str, Any]:
    """Of every document: the truth, what each test says of it, and what that took."""
    gate(case)
    attention, attention_ms = attended(case)
    answer, found = answered(case.window, asked_of(case.window, case.question), ANSWER)
    rows = []
    for index, handle in enumerate(case.documents):
        since = time.perf_counter()
        truth = float(divergence(case.truth, case.without(index)).mean())
        row: dict[str, Any] = {"truth": truth, "truth_ms": (time.perf_counter() - since) * 1e3}
        row["rows not attended"] = said(
            case.window.disposable(handle, case.question, "fast", new_tokens=ANSWER)
        )
        row["dependents clean"] = dependents_clean(case, index, answer, found)
        row["attention"] = {"kl": attention[index], "ms": attention_ms / SIZE}
        rows.append(row)
    return {"about": case.about, "documents": rows}


def said(found: Disposal) -> dict[str, Any]:
    return {
        "kl": found.kl,
        "kl_first": found.kl_per_token[0],
        "kl_question": found.kl_question,
        "agreement": found.agreement,
        "ms": found.ms,
    }


def dependents_clean(case: Case, gone: int, answer: list[int], found: Tensor) -> dict[str, Any]:
    """The document's rows are not attended, and whatever was computed behind it is shown as its canonical.

    answer, found: what `agentkv.disposal.answered` gives for the whole window; the time is without it.
    """
    since, handle = time.perf_counter(), case.documents[gone]
    asked = asked_of(case.window, case.question)
    with case.window.fork() as twin:
        twin.policy = Policy(name="fast", stash=False)
        twin.evict(handle)
        for behind in case.documents[gone + 1 :]:
            twin.clean_view(behind)
        twin.commit()
        left = retold(twin, asked, answer)
    return said(compared(handle, found, left, ANSWER, twin.policy.kl_budget, since))


def attended(case: Case) -> tuple[list[float], float]:
    """Of every document, the attention that the question pays to its rows, and what one look takes."""
    since, window = time.perf_counter(), case.window
    rows = {p.uid: p for p in window.graph.placements}
    with window.fork() as twin:
        twin.kv.own()
        uids = [uid for uid, _ in asked_of(window, case.question).parts]
        runs = [Run(rows[u].row, window.engine.chunks.ids(rows[u].chunk.id), rows[u].position) for u in uids]
        paid = window.engine.backend.ask(twin.kv, runs)
    first = window.kv.start
    found = []
    for handle in case.documents:
        entry = window.content.get(handle.id)
        assert entry is not None
        spans = [(rows[uid].row - first, rows[uid].stop - first) for uid, _ in entry.parts]
        found.append(sum(float(paid[a:b].sum()) for a, b in spans))
    return found, (time.perf_counter() - since) * 1e3


if __name__ == "__main__":
    main()
