"""The fit is the optimum of the stated loss, and recovers what made the labels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from paceline.lab.training.classifier_metrics import logistic_regression


def loss(
    w: np.ndarray, x: np.ndarray, labels: np.ndarray, weights: np.ndarray, penalty: float
) -> float:
    """The documented loss, for standardised features."""
    z = x @ w[:-1] + w[-1]
    entropy = np.logaddexp(0, z) - labels * z
    return float(np.average(entropy, weights=weights) + 0.5 * penalty * w[:-1] @ w[:-1])


@settings(max_examples=20)
@given(
    seed=st.integers(0, 1000),
    n=st.integers(8, 60),
    d=st.integers(1, 5),
    penalty=st.sampled_from([0.01, 0.1, 1.0]),
)
def test_the_fit_is_the_optimum(seed: int, n: int, d: int, penalty: float) -> None:
    generator = np.random.default_rng(seed)
    x = (generator.normal(size=(n, d)) * generator.uniform(0.1, 9, d)).astype(np.float32)
    labels = generator.random(n) < 0.3
    labels[:2] = True, False
    weights = generator.uniform(0.1, 9, n)
    weight, bias = logistic_regression(x, labels, weights, penalty)
    mean, scale = x.astype(float).mean(axis=0), x.astype(float).std(axis=0)
    z = (x - mean) / scale
    mine = np.append(weight * scale, bias + weight @ mean)
    best = minimize(loss, np.zeros(d + 1), args=(z, labels, weights, penalty)).fun
    assert loss(mine, z, labels, weights, penalty) <= best + 1e-6


def test_the_direction_that_made_the_labels_is_found() -> None:
    generator = np.random.default_rng(1)
    truth = np.array([2.0, -1.0, 0.0, 0.5])
    x = generator.normal(size=(4000, 4)).astype(np.float32)
    labels = generator.random(4000) < 1 / (1 + np.exp(-(x @ truth - 2)))
    weight, bias = logistic_regression(x, labels, np.ones(4000), 1e-4)
    assert weight.tolist() == pytest.approx(truth.tolist(), abs=0.25)
    assert bias == pytest.approx(-2, abs=0.25)


def test_examples_that_count_more_are_got_right_more_often() -> None:
    generator = np.random.default_rng(3)
    x = generator.normal(size=(2000, 2)).astype(np.float32)
    labels = x[:, 0] + 2 * generator.normal(size=2000) > 0
    shares = []
    for cost in (1.0, 4.0):
        weight, bias = logistic_regression(x, labels, np.where(labels, 1.0, cost), 1e-3)
        shares.append((x @ weight + bias > 0)[~labels].mean())
    assert shares[1] < 0.1 < shares[0]


def test_constant_features_and_separable_classes_stay_finite() -> None:
    x = np.array([[1, 0], [1, 1], [1, 5], [1, 6]], np.float32)
    weight, bias = logistic_regression(x, np.array([False, False, True, True]), np.ones(4), 1e-3)
    assert weight[0] == 0
    assert np.isfinite(weight).all()
    assert ((x @ weight + bias > 0) == [False, False, True, True]).all()


def test_more_features_than_examples_are_no_problem() -> None:
    generator = np.random.default_rng(2)
    x = generator.normal(size=(20, 50)).astype(np.float32)
    labels = x[:, 0] > 0
    weight, bias = logistic_regression(x, labels, np.ones(20), 0.1)
    assert ((x @ weight + bias > 0) == labels).all()
