"""Logistic regression with weighted examples, by Newton's method: convex, so one right answer."""

from __future__ import annotations

import numpy as np

from paceline.types import BoolArray, LogitArray, ProbArray

_STEPS = 100
_SMALL = 1e-8


def fit_logistic(
    features: LogitArray, labels: BoolArray, weights: ProbArray, penalty: float
) -> tuple[LogitArray, float]:
    """Weight and bias that minimise the mean weighted cross-entropy plus an L2 penalty.

    Features are standardised inside, so that the penalty treats them alike, and the result is for
    the features as given.

    Args:
        features: float32 `[n, d]`.
        labels: bool `[n]`, both classes present.
        weights: float64 `[n]`, how much each example counts; only their ratios matter.
        penalty: weight of half the squared length of the (standardised) weight.

    Returns:
        float32 `[d]` weight and the bias.
    """
    x = features.astype(np.float64)
    mean, scale = x.mean(axis=0), x.std(axis=0)
    scale[scale < _SMALL] = 1.0  # a constant feature says nothing, and gets no weight
    x = np.column_stack([(x - mean) / scale, np.ones(len(x))])
    y = labels.astype(np.float64)
    share: ProbArray = weights / weights.sum()
    ridge = np.full(x.shape[1], penalty)
    ridge[-1] = 0.0
    w = np.zeros(x.shape[1])
    for _ in range(_STEPS):
        probability = _sigmoid(x @ w)
        gradient = x.T @ (share * (probability - y)) + ridge * w
        if np.abs(gradient).max() < _SMALL:
            break
        curvature = share * probability * (1 - probability)
        hessian = (x.T * curvature) @ x + np.diag(ridge + _SMALL)
        step = np.asarray(np.linalg.solve(hessian, gradient), dtype=np.float64)
        w = _descend(x, y, share, ridge, w, step)
    weight = w[:-1] / scale
    return weight.astype(np.float32), float(w[-1] - weight @ mean)


def _descend(
    x: ProbArray, y: ProbArray, weights: ProbArray, ridge: ProbArray, w: ProbArray, step: ProbArray
) -> ProbArray:
    """`w` after the longest of step, step / 2, step / 4, ... that does not raise the loss."""
    before = _loss(x, y, weights, ridge, w)
    for _ in range(30):
        after = w - step
        if _loss(x, y, weights, ridge, after) <= before:
            return after
        step = step / 2
    return w


def _loss(x: ProbArray, y: ProbArray, weights: ProbArray, ridge: ProbArray, w: ProbArray) -> float:
    score = x @ w
    entropy = np.logaddexp(0.0, score) - y * score
    return float(weights @ entropy + 0.5 * (ridge * w) @ w)


def _sigmoid(score: ProbArray) -> ProbArray:
    out: ProbArray = 0.5 * (1 + np.tanh(0.5 * score))
    return out
