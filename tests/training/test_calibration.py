"""Bins hold what they say, and a calibrated predictor has no error to speak of."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.errors import InvalidOption
from paceline.training.classifier_metrics import reliability


def test_bins_by_hand() -> None:
    predictions = np.array([0.0, 0.1, 0.25, 0.5, 0.9, 1.0])
    outcomes = np.array([0.0, 1.0, 1.0, 0.5, 1.0, 1.0])
    found = reliability(predictions, outcomes, bins=4)
    assert found.counts.tolist() == [2, 1, 1, 2]
    assert found.predicted.tolist() == pytest.approx([0.05, 0.25, 0.5, 0.95])
    assert found.observed.tolist() == pytest.approx([0.5, 1.0, 0.5, 1.0])
    assert found.error == pytest.approx((2 * 0.45 + 0.75 + 0 + 2 * 0.05) / 6)


def test_empty_bins_are_left_out() -> None:
    found = reliability(np.array([0.95, 0.96]), np.array([1.0, 0.0]))
    assert found.counts.tolist() == [2]
    assert found.observed.tolist() == [0.5]


def test_only_a_calibrated_predictor_has_no_error() -> None:
    generator = np.random.default_rng(0)
    truth = generator.random(20_000)
    outcomes = (generator.random(20_000) < truth).astype(np.float64)
    assert reliability(truth, outcomes).error < 0.02
    assert reliability(truth**2, outcomes).error > 0.1


def test_nothing_to_bin_is_named() -> None:
    with pytest.raises(InvalidOption, match="number of examples must be 1 or more, not 0"):
        reliability(np.zeros(0), np.zeros(0))
    with pytest.raises(InvalidOption, match="bins must be"):
        reliability(np.zeros(1), np.zeros(1), bins=0)
