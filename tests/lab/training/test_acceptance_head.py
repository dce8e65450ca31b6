"""Labels are acceptance probabilities, and the weighted loss has its minimum where it is said."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.drafters.network.stopping_head import unweighted
from paceline.errors import InvalidOption
from paceline.lab.training.acceptance import acceptance_labels, acceptance_loss, mix_tokens
from paceline.lab.training.classifier_metrics import calibration_error


def test_some_tokens_are_the_drafters_and_those_are_marked() -> None:
    text, drafted = np.arange(2000), np.arange(2000) + 5000
    mixed, chosen = mix_tokens(text, drafted, 0.15, np.random.default_rng(0))
    assert 0.12 < chosen.mean() < 0.18
    assert mixed.tolist() == [d if c else t for t, d, c in zip(text, drafted, chosen, strict=True)]
    with pytest.raises(InvalidOption, match="share of drafted tokens must be"):
        mix_tokens(text, drafted, 1.5, np.random.default_rng(0))


@given(st.integers(0, 1000))
def test_labels_are_what_rejection_sampling_accepts(seed: int) -> None:
    generator = np.random.default_rng(seed)
    p, q = generator.dirichlet(np.ones(5), size=(2, 7))
    tokens = generator.integers(0, 5, 7)
    logits = torch.from_numpy(np.log(p)) + 3, torch.from_numpy(np.log(q)) - 1
    labels = acceptance_labels(*logits, torch.from_numpy(tokens)).numpy()
    rows = np.arange(7)
    assert labels.tolist() == pytest.approx(np.minimum(1, p[rows, tokens] / q[rows, tokens]))


def test_labels_average_to_one_minus_the_distance() -> None:
    p, q = np.random.default_rng(3).dirichlet(np.ones(6), size=2)
    logits = [torch.from_numpy(np.log(each)).expand(6, 6) for each in (p, q)]
    labels = acceptance_labels(logits[0], logits[1], torch.arange(6)).numpy()
    assert q @ labels == pytest.approx(1 - 0.5 * np.abs(p - q).sum())


def test_the_loss_by_hand() -> None:
    scores = torch.tensor([0.4, -1.0, 2.0], dtype=torch.float64)
    labels = torch.tensor([0.25, 1.0, 0.0], dtype=torch.float64)
    drafted = torch.tensor([True, True, False])
    s = 1 / (1 + np.exp(-scores.numpy()))
    rows = [-0.25 * np.log(s[0]) - 6 * 0.75 * np.log(1 - s[0]), -np.log(s[1])]
    assert float(acceptance_loss(scores, labels, drafted)) == pytest.approx(np.mean(rows))
    assert float(acceptance_loss(scores, labels, torch.zeros(3, dtype=torch.bool))) == 0
    with pytest.raises(InvalidOption, match="rejection weight must be above 0"):
        acceptance_loss(scores, labels, drafted, rejection=0)


@given(label=st.floats(0.05, 0.95), weight=st.sampled_from([1.0, 3.0, 6.0]))
def test_unweighting_undoes_what_the_weight_does_to_the_best_score(
    label: float, weight: float
) -> None:
    best = label / (label + weight * (1 - label))
    assert unweighted(np.array([best]), weight) == pytest.approx([label])
    score = torch.tensor([np.log(best / (1 - best))], requires_grad=True)
    loss = acceptance_loss(score, torch.tensor([label]).double(), torch.ones(1), weight)
    (slope,) = torch.autograd.grad(loss, score)
    assert abs(float(slope)) < 1e-6


def test_a_trained_head_is_calibrated_once_unweighted_and_not_before() -> None:
    generator = np.random.default_rng(0)
    hidden = generator.normal(size=(3000, 3))
    labels = 1 / (1 + np.exp(-(hidden @ [1.0, -2.0, 0.5] + 1)))
    features = torch.from_numpy(np.column_stack([hidden, np.ones(3000)]))
    weight = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([weight], max_iter=60)

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        value = acceptance_loss(features @ weight, torch.from_numpy(labels), torch.ones(3000))
        value.backward()
        return value

    optimiser.step(loss)
    said = torch.sigmoid(features @ weight).detach().numpy()
    assert calibration_error(said, labels) > 0.1
    assert calibration_error(unweighted(said, 6.0), labels) < 0.03
