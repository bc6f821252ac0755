"""The named situations carried out: on token ids, where calls are counted, and on a tiny model in fp64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from agentkv.backends.base import Backend
from agentkv.backends.recording import RecordingBackend
from agentkv.testing import rows
from tests.orchestrator.loops import SCENARIOS, Scenario, opened_by
from tests.orchestrator.scenarios import hole, slide
from tests.runtime.cases import FULL, engine
from tests.runtime.stage import Stage, staged

EACH = pytest.mark.parametrize("make", SCENARIOS, ids=lambda make: make.__name__)


def played(make: Scenario, backend: Callable[[], Backend]) -> tuple[Stage, str]:
    """The situation with its edit carried out, and the policy's name."""
    session, wanted, policy = make(opened_by(staged(backend)))
    assert isinstance(session, Stage)
    if wanted is None:
        session.settle()
    else:
        session.go(wanted, policy)
    return session, policy if isinstance(policy, str) else policy.name


@EACH
def test_the_executor_does_what_the_plan_says(make: Scenario) -> None:
    """Without a model: each verb for the rows of its ops, and the right tokens in the right rows."""
    stage, _ = played(make, RecordingBackend)
    stage.assert_did_what_the_plan_says()
    shown = [token for p in stage.graph.placements for token in stage.tokens_of(p.chunk.id).ids.tolist()]
    assert rows(stage.kv) == shown


@EACH
def test_a_model_agrees_with_the_story(make: Scenario) -> None:
    """Each verb for the rows of its ops; whatever the graph calls exact is what a re-prefill gives, and that
    is all of it under the exact policy."""
    with engine(dtype=torch.float64, patch_rank=FULL) as built:
        stage, policy = played(make, lambda: built.backend)
        stage.assert_did_what_the_plan_says()
        found = stage.assert_as_exact_as_the_graph_says(everything=policy == "exact")
        stale = stage.graph.stale()
        assert found or all(p.uid in stale or p.hearsay for p in stage.graph.placements)


def test_what_the_graph_calls_stale_differs_from_a_re_prefill() -> None:
    """The comparison can fail: survivors of a slide do carry what left."""
    with engine(dtype=torch.float64, patch_rank=FULL) as built:
        stage, _ = played(slide, lambda: built.backend)
        with pytest.raises(AssertionError):
            stage.assert_as_exact_as_the_graph_says(everything=True)


def test_a_verb_too_few_would_show() -> None:
    stage, _ = played(hole, RecordingBackend)
    assert stage.done is not None
    stage.done.calls.remove(next(call for call in stage.done.calls if call[0] == "place"))
    with pytest.raises(AssertionError):
        stage.assert_did_what_the_plan_says()
