"""Estimates against what was accepted: of all drafts, of one sequence, and of those chosen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.policy.acceptance import Calibration, DecayedMean, corrected


def promised_and_kept(calibration: Calibration, *, told: bool) -> tuple[float, float]:
    """Tokens of chosen drafts: as promised, and as they came, of the later half of many.

    Estimates are right on average, and each is off by a factor. Drafts that promise much are
    chosen; `told` says whether the calibration learns which.
    """
    generator = np.random.default_rng(5)
    promised = kept = 0.0
    for draft in range(20_000):
        estimate = float(generator.uniform(0.05, 0.3))
        stood = float(generator.random() < estimate * generator.choice([0.2, 1.8]))
        noisy = estimate * float(generator.choice([0.5, 1.5]))
        expected_accepted = noisy * calibration.factor(0)
        chosen = expected_accepted > 0.2
        (calibration.verified if chosen and told else calibration.learn)(0, stood, noisy)
        if chosen and draft > 10_000:
            promised += expected_accepted
            kept += stood
    return promised, kept


def test_what_is_chosen_keeps_what_it_promises() -> None:
    promised, kept = promised_and_kept(Calibration(), told=True)
    assert promised == pytest.approx(kept, rel=0.1)


def test_without_it_the_chosen_promise_too_much() -> None:
    """Negative control."""
    promised, kept = promised_and_kept(Calibration(), told=False)
    assert promised > 1.2 * kept


def test_drafts_that_keep_what_they_promise_are_left_as_they_are() -> None:
    calibration = Calibration()
    for step in range(400):
        calibration.verified(step % 3, 0.5, 0.5)
    assert calibration.factor(0) == pytest.approx(1.0)
    assert calibration.factor(99) == pytest.approx(1.0)


def test_a_sequence_has_a_factor_of_its_own() -> None:
    calibration = Calibration()
    for _ in range(100):
        calibration.learn(0, 0.0, 0.5)
        calibration.learn(1, 1.0, 0.5)
    shared = calibration.factor(2)
    assert calibration.factor(0) < shared < calibration.factor(1)
    calibration.close(0)
    calibration.close(0)
    assert calibration.factor(0) == shared


@given(st.lists(st.floats(0, 1), max_size=9), st.floats(0.01, 9))
def test_corrected_chances_are_chances_in_the_same_order(
    chances: list[float], factor: float
) -> None:
    found = corrected(chances, factor)
    assert all(0 <= chance <= 1 for chance in found)
    pairs = sorted(zip(chances, found, strict=True))
    assert [after for _, after in pairs] == sorted(found)


@pytest.mark.parametrize("factor", [0.3, 1.0, 2.5])
def test_small_chances_come_true_so_many_times_as_often(factor: float) -> None:
    [small, sure] = corrected([0.001, 1.0], factor)
    assert small == pytest.approx(0.001 * factor, rel=0.01)
    assert sure == min(factor, 1.0)


@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(1, 9)), max_size=9))
def test_a_run_of_equal_observations_counts_as_that_many(runs: list[tuple[float, int]]) -> None:
    once, each = DecayedMean(0.9, 2.0, 3.0), DecayedMean(0.9, 2.0, 3.0)
    for value, times in runs:
        once.add_run(value, times)
        for _ in range(times):
            each.add(value)
    assert once.mean == pytest.approx(each.mean)
    assert once.weight == pytest.approx(each.weight)


def test_a_mean_that_fades_returns_to_its_prior() -> None:
    mean = DecayedMean(0.9)
    assert mean.mean == 0.0
    mean.add(4.0, weight=2.0)
    assert mean.mean == 2.0
    assert mean.shrunk(1.0, 2.0) == 1.5
    mean.fade(1e-9)
    assert mean.mean == pytest.approx(2.0)
    assert mean.shrunk(1.0, 2.0) == pytest.approx(1.0)
