"""Seconds of a step, shared out among the choices of its sequences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.drafters.combine.bandit import Prices


@settings(max_examples=30)
@given(
    st.lists(st.floats(0.1, 3.0), min_size=2, max_size=5),
    st.integers(1, 6),
    st.integers(0, 2**32),
)
def test_shares_are_found_from_sums(costs: list[float], sequences: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    prices = Prices(len(costs))
    for _ in range(600):
        chosen = generator.integers(0, len(costs), sequences)
        seconds = float(np.array(costs)[chosen].sum()) * (1 + 0.02 * generator.standard_normal())
        prices.add(chosen, sequences, seconds)
    assert prices.shares == pytest.approx(costs, abs=0.05, rel=0.1)
    # A running mean of draws that differ twelvefold in price wavers more than the shares do.
    assert prices.rate == pytest.approx(1 / np.mean(costs), rel=0.25)


def test_what_was_never_chosen_costs_half_the_mean() -> None:
    prices = Prices(2)
    assert prices.shares.tolist() == [0.0, 0.0]
    assert prices.rate == 0
    for _ in range(50):
        prices.add([0, 0], 2, 4.0)
    assert prices.shares == pytest.approx([2.0, 1.0], rel=0.01)


def test_a_single_slow_step_moves_little_and_a_slower_machine_is_followed() -> None:
    prices = Prices(1)
    for _ in range(100):
        prices.add([0], 1, 1.0)
    prices.add([0], 1, 1e6)
    assert prices.shares[0] < 1.05
    for _ in range(2000):
        prices.add([0], 1, 10.0)
    assert prices.shares[0] == pytest.approx(10, rel=0.05)
