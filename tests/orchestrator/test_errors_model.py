"""The error model: what a chunk's KL depends on, and which way."""

from __future__ import annotations

from math import log

import pytest
from agentkv_orchestrator.diff import Change
from agentkv_orchestrator.errors_model import Curve, Where
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import COSTS, chunk

KL = COSTS.kl
WHERE = Where("doc", 100, 400, 600)


def change(**what: object) -> Change:
    return Change(**{"uid": 1, "chunk": chunk("a", 100), "kind": "survivor", **what})


def test_what_left_counts_against_what_was_there_and_what_came_against_what_is() -> None:
    share = 100 / 600  # of the window
    left = KL.stale(change(lost=1, lost_tokens=100), WHERE)
    assert left == pytest.approx(KL.slide.scale * 100 / 500 * share)
    hole = KL.stale(change(lost=1, lost_tokens=100, hole=True), WHERE)
    assert hole == pytest.approx(KL.hole.scale * 100 / 500 * share)
    came = KL.stale(change(gained=1, gained_tokens=100), WHERE)
    assert came == pytest.approx(KL.inserted.scale * 100 / 400 * share)
    other = KL.model_copy(update={"recalled": Curve(scale=0.3, power=0.5)})
    stored = change(gained=1, gained_tokens=100, context="stored")
    assert other.stale(stored, WHERE) == pytest.approx(0.3 * 0.5 * share)
    assert other.stale(change(gained=1, gained_tokens=100), WHERE) == came
    both = change(lost=1, lost_tokens=100, gained=1, gained_tokens=100, reordered=True)
    replaced = KL.slide.scale * 100 / 400 + KL.inserted.scale * 100 / 400 + KL.reordered
    assert KL.stale(both, WHERE) == pytest.approx(replaced * share)


def test_nothing_that_changed_is_no_error() -> None:
    assert KL.stale(change(), WHERE) == 0.0


@given(st.integers(0, 400), st.integers(0, 400), st.booleans(), st.booleans())
def test_it_grows_with_what_changed_up_to_all_of_it(lost: int, gained: int, hole: bool, turned: bool) -> None:
    def kl(lost: int, gained: int) -> float:
        return KL.stale(change(lost_tokens=lost, gained_tokens=gained, hole=hole, reordered=turned), WHERE)

    now = kl(lost, gained)
    assert 0 <= now <= kl(lost + 1, gained)
    assert gained == 400 or now <= kl(lost, gained + 1)
    assert now <= (KL.slide.scale + KL.hole.scale + KL.inserted.scale + KL.reordered) * KL.weight(WHERE)


def test_a_chunk_weighs_by_its_kind_and_by_how_near_the_question_is() -> None:
    close = KL.model_copy(update={"kinds": {"code": 3.0}, "near": 10.0})
    assert close.bare(WHERE) == pytest.approx(KL.canonical * log(210 / 110) / log(61))
    assert close.bare(WHERE._replace(kind="code")) == pytest.approx(3 * close.bare(WHERE))
    weights = [close.weight(WHERE._replace(front=front)) for front in range(0, 501, 100)]
    assert weights == sorted(weights)
    assert sum(weights) == pytest.approx(1.0)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=9), st.integers(1, 299), st.floats(0.1, 1e4))
def test_cutting_a_chunk_in_two_changes_nothing(lengths: list[int], cut: int, near: float) -> None:
    model, window = KL.model_copy(update={"near": near}), sum(lengths)
    whole = Where("doc", lengths[0], window - lengths[0], window)
    a = min(cut, lengths[0] - 1)
    if a:
        parts = [
            Where("doc", a, whole.front, window),
            Where("doc", lengths[0] - a, whole.front + a, window),
        ]
        assert sum(map(model.bare, parts)) == pytest.approx(model.bare(whole)) or not whole.front


def test_what_stands_first_and_was_not_computed_there_lacks_the_first_tokens() -> None:
    front = WHERE._replace(front=0)
    assert KL.stale(change(lost=1, lost_tokens=10), front) == KL.bare(front) == KL.first
    assert KL.stale(change(), front) == 0.0


def test_patches_are_better_with_rank_and_an_orbit_is_never_better_than_one() -> None:
    coarse, fine = KL.at_rank(8), KL.at_rank(64)
    assert coarse.patched(WHERE) == pytest.approx(4 * KL.patched(WHERE))
    assert fine.patched(WHERE) == pytest.approx(KL.patched(WHERE) / 2)
    assert fine.orbited(WHERE) == KL.orbited(WHERE)
    assert coarse.orbited(WHERE) >= coarse.patched(WHERE)
    assert coarse.at_rank(32).patch == pytest.approx(KL.patch)


def test_a_bound_is_the_expected_kl_times_one_factor() -> None:
    for kl in ("bare", "patched", "orbited"):
        assert getattr(KL.scaled(2.5), kl)(WHERE) == pytest.approx(2.5 * getattr(KL, kl)(WHERE))
    lost = change(lost_tokens=10)
    assert KL.scaled(2.5).stale(lost, WHERE) == pytest.approx(2.5 * KL.stale(lost, WHERE))
