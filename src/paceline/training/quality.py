"""How good a classifier is on held-out prompts: accuracy and AUC, beside what needs no head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from paceline.types import BoolArray, IntArray, ProbArray

_RESAMPLES = 400


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with its 90% interval, by resampling prompts."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Quality:
    """A head on held-out prompts.

    Attributes:
        examples: number of held-out mismatches.
        prompts: number of prompts that they come from.
        base_rate: share of the positive class.
        majority: accuracy of always naming the more frequent class.
        accuracy: at probability one half.
        balanced_accuracy: mean of the accuracies within either class.
        auc: chance that a positive example scores higher than a negative one.
        logprob_auc: the same for the drafted token's log-probability instead of the head.
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
        """The figures by name."""
        return asdict(self)


def auc(scores: ProbArray, labels: BoolArray) -> float:
    """Area under the ROC curve; ties count half. NaN with one class alone."""
    positive = int(labels.sum())
    negative = len(labels) - positive
    if not positive or not negative:
        return float("nan")
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    wins = ranks[labels].sum() - positive * (positive + 1) / 2
    return float(wins / (positive * negative))


def judge_quality(
    probabilities: ProbArray, labels: BoolArray, logprobs: ProbArray, prompts: IntArray
) -> Quality:
    """Figures of a head.

    Args:
        probabilities: float64 `[n]`, of the positive class.
        labels: bool `[n]`.
        logprobs: float64 `[n]`, of the drafted tokens, signed so that larger speaks for positive.
        prompts: int64 `[n]`, which prompt each example comes from.
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

    return Quality(
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
