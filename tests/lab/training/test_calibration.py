"""Bins hold what they say, and a calibrated predictor has no error to speak of."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.errors import InvalidOption
from paceline.lab.training.classifier_metrics import calibration_error


def test_bins_by_hand() -> None:
    predictions = np.array([0.0, 0.1, 0.25, 0.5, 0.9, 1.0])
    outcomes = np.array([0.0, 1.0, 1.0, 0.5, 1.0, 1.0])
    found = calibration_error(predictions, outcomes, bins=4)
    assert found == pytest.approx((2 * 0.45 + 0.75 + 0 + 2 * 0.05) / 6)


def test_empty_bins_are_left_out() -> None:
    found = calibration_error(np.array([0.95, 0.96]), np.array([1.0, 0.0]))
    assert found == pytest.approx(0.955 - 0.5)


def test_only_a_calibrated_predictor_has_no_error() -> None:
    generator = np.random.default_rng(0)
    truth = generator.random(20_000)
    outcomes = (generator.random(20_000) < truth).astype(np.float64)
    assert calibration_error(truth, outcomes) < 0.02
    assert calibration_error(truth**2, outcomes) > 0.1


def test_nothing_to_bin_is_named() -> None:
    with pytest.raises(InvalidOption, match="number of examples must be 1 or more, not 0"):
        calibration_error(np.zeros(0), np.zeros(0))
    with pytest.raises(InvalidOption, match="bins must be"):
        calibration_error(np.zeros(1), np.zeros(1), bins=0)
