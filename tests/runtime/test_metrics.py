"""Bootstrap intervals against what they are in plain numpy and in cases with a known answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agentkv.metrics import agreement, bootstrap, eta, interval


def test_an_interval_is_that_of_the_resampled_means() -> None:
    samples = np.random.default_rng(3).normal(5, 2, 400)
    value, low, high = interval(samples.tolist())
    assert value == pytest.approx(samples.mean())
    error = samples.std() / np.sqrt(len(samples))  # normal theory
    assert (low, high) == pytest.approx((value - 1.96 * error, value + 1.96 * error), abs=0.2 * error)


def test_the_same_samples_give_the_same_interval() -> None:
    assert interval([1.0, 4.0, 2.0]) == interval([1.0, 4.0, 2.0])
    assert interval([2.0]) == (2.0, 2.0, 2.0)


def test_eta_resamples_both_sides_together() -> None:
    """An arm that is half of blind in every item has η = 0.5 without any spread."""
    blind = [0.1, 3.0, 0.7, 12.0]
    assert eta([x / 2 for x in blind], blind) == pytest.approx((0.5, 0.5, 0.5))
    assert eta([0.3, 0.1], [0.2, 0.2])[0] == pytest.approx(0.0)
    assert eta([2.0], [1.0])[0] == -1.0


def test_a_statistic_of_several_rows_sees_the_same_picks() -> None:
    data = np.arange(12.0).reshape(2, 6)
    apart = bootstrap(lambda x: (x[1] - x[0]).std(-1), data)
    assert apart == (0.0, 0.0, 0.0)


def test_agreement_ends_at_the_first_difference() -> None:
    truth = torch.eye(5)
    other = truth[[0, 1, 3, 3, 4]]
    assert agreement(truth, other) == 2
    assert agreement(truth, truth) == 5
