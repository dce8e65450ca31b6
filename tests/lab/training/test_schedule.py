"""Rates at the ends and between, and shares of on-policy batches."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidOption
from paceline.lab.training.drafter import is_on_policy
from paceline.lab.training.recipe import Recipe, cosine


def test_rates_of_a_recipe_rise_and_fall_to_a_fiftieth() -> None:
    recipe = Recipe(warm_up=0.4)
    rates = [recipe.scheduled(2.0, step, 10) for step in range(10)]
    assert rates[:4] == [0.5, 1.0, 1.5, 2.0]
    assert rates[-1] == pytest.approx(0.04)
    assert Recipe(warm_up=1.0).scheduled(2.0, 0, 1) == 2.0


def test_cosine_by_hand() -> None:
    rates = [cosine(step, peak=1.0, steps=7, warm=3, floor=0.2) for step in range(9)]
    half = [0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi * k / 4)) for k in range(5)]
    assert rates == pytest.approx([1 / 3, 2 / 3, *half, 0.2, 0.2])


@given(data=st.data(), steps=st.integers(1, 50), floor=st.floats(0, 1))
def test_cosine_rises_to_its_peak_and_falls_to_its_floor(
    data: st.DataObject, steps: int, floor: float
) -> None:
    warm = data.draw(st.integers(0, steps - 1))
    rates = [cosine(step, peak=1.0, steps=steps, warm=warm, floor=floor) for step in range(steps)]
    top = max(0, warm - 1)
    assert rates[top] == 1.0
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    if steps > top + 1:
        assert rates[-1] == pytest.approx(floor)


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(InvalidOption, match="warm-up must be 0 to 9 of 10 steps, not 10"):
        cosine(0, peak=1.0, steps=10, warm=10)
    with pytest.raises(InvalidOption, match=r"floor must be 0 to the peak of 1\.0, not 2"):
        cosine(0, peak=1.0, steps=10, floor=2)


def test_batches_are_on_policy_as_often_as_asked_and_the_same_ones_again() -> None:
    drawn = [is_on_policy(step, 0.3, seed=5) for step in range(2000)]
    assert 0.27 < sum(drawn) / 2000 < 0.33
    assert drawn[1000:] == [is_on_policy(step, 0.3, seed=5) for step in range(1000, 2000)]
    assert drawn != [is_on_policy(step, 0.3, seed=6) for step in range(2000)]
    assert not any(is_on_policy(step, 0.0, 0) for step in range(100))
    assert all(is_on_policy(step, 1.0, 0) for step in range(100))
