"""The stated power is the power: injected biases are found as often as stated."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.lab.audit.checks import (
    Features,
    compare,
    detectable_difference,
    detectable_fit,
    fit,
    halves,
    pool,
    shifted,
)

LAW = {0: 0.4, 1: 0.3, 2: 0.2, 3: 0.1}
LEVEL = 0.01


def test_halves_are_as_even_as_the_cells_allow() -> None:
    assert halves(np.array([0.4, 0.3, 0.2, 0.1])).tolist() == [True, False, False, True]
    assert halves(np.array([0.1, 0.9])).tolist() == [False, True]


@pytest.mark.parametrize("bias", [0.0, 0.1, 0.5])
def test_a_shift_has_the_total_variation_that_it_says(bias: float) -> None:
    probs = np.array(list(LAW.values()))
    moved = shifted(probs, halves(probs), bias)
    assert moved.sum() == pytest.approx(1)
    assert np.abs(moved - probs).sum() / 2 == pytest.approx(bias)


def test_moving_everything_leaves_a_law_in_spite_of_rounding() -> None:
    for size in range(2, 60):
        for first in range(1, size):
            probs = np.array([first, size - first]) / size
            heavy = halves(probs)
            moved = shifted(probs, heavy, float(probs[heavy].sum()))
            assert moved[heavy] == pytest.approx(0, abs=1e-12)
            assert (moved <= 1).all(), "numpy draws from no law above 1"


@pytest.mark.parametrize("power", [0.8, 0.9])
def test_the_fit_finds_the_stated_bias_as_often_as_stated(power: float) -> None:
    size, runs = 300, 200
    cells = pool(LAW, size)
    bias = detectable_fit(cells, size, LEVEL, power, 2000, 0)
    assert bias is not None
    distribution = shifted(cells.probs, halves(cells.probs), bias)
    generator = np.random.default_rng(5)
    found = 0
    for seed in range(runs):
        outcomes = generator.choice(len(distribution), size, p=distribution).tolist()
        found += fit(outcomes, cells, 999, seed) <= LEVEL
    assert found / runs == pytest.approx(power, abs=0.1)


def test_no_other_shape_of_the_same_bias_is_harder_to_find() -> None:
    size, runs = 300, 200
    cells = pool(LAW, size)
    bias = detectable_fit(cells, size, LEVEL, 0.8, 2000, 0)
    assert bias is not None
    generator = np.random.default_rng(6)
    for source in range(4):
        for sink in range(4):
            if source == sink or cells.probs[source] < bias:
                continue
            distribution = cells.probs.copy()
            distribution[source] -= bias
            distribution[sink] += bias
            found = sum(
                fit(
                    generator.choice(len(distribution), size, p=distribution).tolist(),
                    cells,
                    299,
                    seed,
                )
                <= LEVEL
                for seed in range(runs // 4)
            )
            assert found / (runs // 4) > 0.6


def pairs(size: int, seed: int, bias: float) -> list[tuple[int, ...]]:
    """Two tokens each; the second one's law has mass `bias` moved between halves."""
    probs = np.array(list(LAW.values()))
    generator = np.random.default_rng(seed)
    first = generator.choice(4, size, p=probs)
    second = generator.choice(4, size, p=shifted(probs, halves(probs), bias))
    return list(zip(first.tolist(), second.tolist(), strict=True))


def test_the_two_sample_test_finds_the_stated_bias_as_often_as_stated() -> None:
    size, runs = 200, 60
    features = Features(pairs(size, 1, 0) + pairs(size, 2, 0), size)
    null = compare(features, size, 1999, 0)
    bias = detectable_difference(features, size, null, LEVEL, 0.8, 0)
    assert bias is not None
    found = 0
    for seed in range(runs):
        both = pairs(size, 10 + 2 * seed, bias) + pairs(size, 11 + 2 * seed, 0)
        found += compare(Features(both, size), size, 299, seed).p_value <= LEVEL
    assert found / runs == pytest.approx(0.8, abs=0.15)


def test_a_certain_law_shows_every_other_token() -> None:
    certain = pool({0: 1.0}, 100)
    bias = detectable_fit(certain, 100, LEVEL, 0.8, 1000, 0)
    assert bias == pytest.approx(1 - 0.2 ** (1 / 100), rel=0.1), "one stray token is enough"


def test_more_samples_see_smaller_biases() -> None:
    biases = [
        detectable_fit(pool(LAW, size), size, LEVEL, 0.8, 1000, 0) for size in (100, 400, 1600)
    ]
    assert None not in biases
    assert biases[0] / biases[1] == pytest.approx(2, rel=0.25)  # type: ignore[operator]
    assert biases[1] / biases[2] == pytest.approx(2, rel=0.25)  # type: ignore[operator]


def test_hopeless_tests_say_so() -> None:
    unknown = pool({0: 0.01, 1: 0.01}, 100)
    assert len(unknown.probs) == 1
    assert detectable_fit(unknown, 100, LEVEL, 0.8, 500, 0) is None
    constant = Features([(1, 2)] * 40, 20)
    assert detectable_difference(constant, 20, compare(constant, 20, 99, 0), LEVEL, 0.8, 0) is None
    few = Features(pairs(20, 1, 0), 10)
    assert detectable_difference(few, 10, compare(few, 10, 1999, 0), 1e-4, 0.9, 0) is None
