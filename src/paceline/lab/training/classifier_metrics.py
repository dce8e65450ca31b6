"""Logistic regression, and its quality on held-out prompts: accuracy, AUC, calibration (ECE)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from paceline.core.options import require
from paceline.core.types import BoolArray, IntArray, LogitArray, ProbArray

_RESAMPLES = 400


@dataclass(frozen=True, slots=True)
class Figure:
    """Value with its 90% bootstrap interval over prompts."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ClassifierMetrics:
    """Held-out quality of a binary classifier.

    Attributes:
        base_rate: share of the positive class.
        majority: accuracy of always naming the more frequent class.
        accuracy: at threshold 0.5.
        balanced_accuracy: mean of per-class accuracies.
        logprob_auc: AUC of the drafted token's log-probability instead of the head.
    """

    examples: int
    prompts: int
    base_rate: float
    majority: float
    accuracy: Figure
    balanced_accuracy: Figure
    auc: Figure
    logprob_auc: Figure

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def auc(scores: ProbArray, labels: BoolArray) -> float:
    """Return the area under the ROC curve; ties count half. NaN with one class alone."""
    positive = int(labels.sum())
    negative = len(labels) - positive
    if not positive or not negative:
        return float("nan")
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    wins = ranks[labels].sum() - positive * (positive + 1) / 2
    return float(wins / (positive * negative))


def classifier_metrics(
    probabilities: ProbArray, labels: BoolArray, logprobs: ProbArray, prompts: IntArray
) -> ClassifierMetrics:
    """Evaluate a classifier, resampling whole prompts.

    Args:
        probabilities: float64 `[n]`, of the positive class.
        labels: bool `[n]`.
        logprobs: float64 `[n]`, of drafted tokens, signed so that larger means positive.
        prompts: int64 `[n]`, prompt of each example.
    """
    said = probabilities > 0.5

    def accuracy(rows: IntArray) -> float:
        return float((said[rows] == labels[rows]).mean())

    def balanced(rows: IntArray) -> float:
        right, truth = said[rows] == labels[rows], labels[rows]
        both = truth.any() and not truth.all()
        return float((right[truth].mean() + right[~truth].mean()) / 2) if both else float("nan")

    rate = float(labels.mean())
    groups = [np.flatnonzero(prompts == each) for each in np.unique(prompts)]

    def figure(of: Callable[[IntArray], float]) -> Figure:
        return _interval(of, groups)

    return ClassifierMetrics(
        len(labels),
        len(groups),
        rate,
        max(rate, 1 - rate),
        figure(accuracy),
        figure(balanced),
        figure(lambda rows: auc(probabilities[rows], labels[rows])),
        figure(lambda rows: auc(logprobs[rows], labels[rows])),
    )


def _interval(of: Callable[[IntArray], float], groups: list[IntArray]) -> Figure:
    generator = np.random.default_rng(0)
    values = [
        of(np.concatenate([groups[i] for i in generator.integers(0, len(groups), len(groups))]))
        for _ in range(_RESAMPLES)
    ]
    low, high = np.nanquantile(values, [0.05, 0.95])
    return Figure(of(np.concatenate(groups)), float(low), float(high))


_STEPS = 100
_SMALL = 1e-8


def logistic_regression(
    features: LogitArray, labels: BoolArray, weights: ProbArray, penalty: float
) -> tuple[LogitArray, float]:
    """Fit weighted L2 logistic regression by Newton's method; return float32 `[d]` weight and bias.

    Features are standardised for the penalty; the result is for unstandardised ones.

    Args:
        features: float32 `[n, d]`.
        labels: bool `[n]`, both classes present.
        weights: float64 `[n]`; only ratios matter.
        penalty: weight of half the squared norm.
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
    # Backtracking line search: halves the step until the loss does not rise.
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


def calibration_error(predictions: ProbArray, outcomes: ProbArray, bins: int = 10) -> float:
    """Return the expected calibration error (ECE) over bins of equal width in [0, 1].

    Args:
        predictions: float64 `[n]` in [0, 1].
        outcomes: float64 `[n]` in [0, 1], or their probability.

    Raises:
        InvalidOption: there are no examples, or no bins.
    """
    require(bins >= 1, "bins", bins, "1 or more")
    require(len(predictions) > 0, "number of examples", len(predictions), "1 or more")
    places = np.digitize(predictions, np.linspace(0, 1, bins + 1)[1:-1])
    excess = np.bincount(places, predictions - outcomes, bins)
    return float(np.abs(excess).sum() / len(predictions))
