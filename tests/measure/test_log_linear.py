"""The law is found again, its interval holds it as often as said, and it is not extended."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidOption
from paceline.measure.log_linear import fit_log_linear

SIZES = 1e5 * 2.0 ** np.arange(8)


@given(a=st.floats(-3, 3), b=st.floats(-1, 1))
def test_points_on_a_line_give_that_line(a: float, b: float) -> None:
    fit = fit_log_linear(SIZES, a + b * np.log(SIZES))
    assert fit.intercept == pytest.approx(a, abs=1e-9)
    assert fit.per_tenfold.value == pytest.approx(b * math.log(10), abs=1e-9)
    assert fit.at([3e5]).tolist() == pytest.approx([a + b * math.log(3e5)], abs=1e-9)
    assert fit.per_tenfold.high - fit.per_tenfold.low < 1e-9


def test_the_fit_is_least_squares() -> None:
    values = np.random.default_rng(0).normal(size=8)
    fit = fit_log_linear(SIZES, values)
    b, a = np.polyfit(np.log10(SIZES), values, 1)
    assert (fit.intercept, fit.per_tenfold.value) == pytest.approx((a, b))
    correlation = np.corrcoef(np.log(SIZES), values)[0, 1]
    assert fit.explained == pytest.approx(correlation**2)


@pytest.mark.parametrize("points", [4, 8])
def test_intervals_hold_the_truth_about_as_often_as_said(points: int) -> None:
    generator = np.random.default_rng(1)
    hits = inside = 0
    for trial in range(200):
        values = 1 + 0.3 * np.log10(SIZES) + generator.normal(size=8) * 0.1
        fit = fit_log_linear(SIZES[-points:], values[-points:], seed=trial)
        hits += fit.per_tenfold.low <= 0.3 <= fit.per_tenfold.high
        low, high = fit.band([2e6])[:, 0]
        inside += low <= 1 + 0.3 * np.log10(2e6) <= high
    assert 168 <= hits <= 192  # of 200 at 90%
    assert 168 <= inside <= 192


def test_the_law_is_not_extended_beyond_its_points() -> None:
    fit = fit_log_linear(SIZES, np.arange(8.0))
    assert fit.at([SIZES[0], SIZES[-1]]).shape == (2,)
    for outside in (SIZES[0] * 0.99, SIZES[-1] * 1.01):
        with pytest.raises(InvalidOption, match=r"fitted from 100000 to 1\.28e\+07 and is not"):
            fit.at([outside])
        with pytest.raises(InvalidOption, match="measure there"):
            fit.band([1e6, outside])


def test_too_few_points_and_bad_ones_are_named() -> None:
    with pytest.raises(InvalidOption, match="needs 3 points of different size, not 2"):
        fit_log_linear([1e5, 1e5, 1e6, 1e6], [1.0, 2.0, 3.0, 4.0])
    with pytest.raises(InvalidOption, match="a size above 0 and a finite value"):
        fit_log_linear([0, 1e5, 1e6], [1.0, 2.0, 3.0])
    with pytest.raises(InvalidOption, match="a finite value"):
        fit_log_linear([1e4, 1e5, 1e6], [1.0, math.nan, 3.0])
