"""The law is found again, and its interval holds it as often as said."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidOption
from paceline.lab.measure.batch_law import fit_log_linear

SIZES = 1e5 * 2.0 ** np.arange(8)


@given(a=st.floats(-3, 3), b=st.floats(-1, 1))
def test_points_on_a_line_give_that_line(a: float, b: float) -> None:
    fit = fit_log_linear(SIZES, a + b * np.log(SIZES))
    assert fit.intercept == pytest.approx(a, abs=1e-9)
    value, low, high = fit.per_tenfold
    assert value == pytest.approx(b * math.log(10), abs=1e-9)
    assert high - low < 1e-9


def test_the_fit_is_least_squares() -> None:
    values = np.random.default_rng(0).normal(size=8)
    fit = fit_log_linear(SIZES, values)
    b, a = np.polyfit(np.log10(SIZES), values, 1)
    assert (fit.intercept, fit.per_tenfold[0]) == pytest.approx((a, b))
    correlation = np.corrcoef(np.log(SIZES), values)[0, 1]
    assert fit.explained == pytest.approx(correlation**2)


@pytest.mark.parametrize("points", [4, 8])
def test_intervals_hold_the_truth_about_as_often_as_said(points: int) -> None:
    generator = np.random.default_rng(1)
    hits = 0
    for trial in range(200):
        values = 1 + 0.3 * np.log10(SIZES) + generator.normal(size=8) * 0.1
        fit = fit_log_linear(SIZES[-points:], values[-points:], seed=trial)
        _, low, high = fit.per_tenfold
        hits += low <= 0.3 <= high
    assert 168 <= hits <= 192  # of 200 at 90%


def test_too_few_points_and_bad_ones_are_named() -> None:
    with pytest.raises(InvalidOption, match="needs 3 points of different size, not 2"):
        fit_log_linear([1e5, 1e5, 1e6, 1e6], [1.0, 2.0, 3.0, 4.0])
    with pytest.raises(InvalidOption, match="a size above 0 and a finite value"):
        fit_log_linear([0, 1e5, 1e6], [1.0, 2.0, 3.0])
    with pytest.raises(InvalidOption, match="a finite value"):
        fit_log_linear([1e4, 1e5, 1e6], [1.0, math.nan, 3.0])
