"""Figures of a head: AUC against brute force, and intervals over prompts."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.lab.training.classifier_metrics import auc, classifier_metrics


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=40))
def test_auc_is_the_share_of_ordered_pairs(pairs: list[tuple[int, bool]]) -> None:
    scores = np.array([float(score) for score, _ in pairs])
    labels = np.array([label for _, label in pairs])
    wins = [(p > n) + 0.5 * (p == n) for p in scores[labels] for n in scores[~labels]]
    if wins:
        assert auc(scores, labels) == pytest.approx(sum(wins) / len(wins))
    else:
        assert math.isnan(auc(scores, labels))


def sample(informative: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(4)
    prompts = np.repeat(np.arange(40), 10)
    labels = generator.random(400) < 0.25
    noise = generator.random(400)
    return np.where(labels, 0.5, 0.0) + noise / 2 if informative else noise, labels, prompts


def test_figures_by_hand() -> None:
    scores, labels, prompts = sample(True)
    quality = classifier_metrics(scores, labels, -scores, prompts)
    assert (quality.examples, quality.prompts) == (400, 40)
    assert quality.base_rate == pytest.approx(labels.mean())
    assert quality.majority == pytest.approx(1 - labels.mean())
    assert quality.accuracy.value == pytest.approx(((scores > 0.5) == labels).mean())
    assert quality.auc.value == pytest.approx(auc(scores, labels))
    assert quality.logprob_auc.value == pytest.approx(1 - auc(scores, labels))
    for figure in (quality.accuracy, quality.balanced_accuracy, quality.auc, quality.logprob_auc):
        assert figure.low <= figure.value <= figure.high
    assert json.loads(json.dumps(quality.as_dict()))["auc"]["value"] == quality.auc.value


def test_noise_is_not_better_than_chance() -> None:
    """Negative control."""
    scores, labels, prompts = sample(False)
    quality = classifier_metrics(scores, labels, scores, prompts)
    assert quality.auc.low < 0.5 < quality.auc.high
    assert quality.accuracy.value < quality.majority
