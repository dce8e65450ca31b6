"""Keyed draws: functions of their names, independent across names, and of the right law."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.types import ProbArray
from paceline.proof.compare import goodness_of_fit
from paceline.sampling.randomness import Draw, KeyedRandomness, Purpose

NAMES = [
    Draw(position, purpose, sibling, root)
    for position, purpose, sibling, root in itertools.product(
        (0, 1, 255, 70_000), Purpose, (0, 1, 300), (0, 1, 70_000)
    )
]


def test_a_draw_is_a_function_of_its_name() -> None:
    """Whatever was drawn before, in whatever order, by whichever object."""
    first = KeyedRandomness(5, 1)
    values = {name: first.uniform(3, name).tolist() for name in NAMES}
    shuffled = NAMES.copy()
    random.Random(1).shuffle(shuffled)
    second = KeyedRandomness(5, 1)
    for name in shuffled:
        second.bernoulli(0.5, name)
        assert second.uniform(3, name).tolist() == values[name]
    assert len({tuple(value) for value in values.values()}) == len(NAMES)


def test_wider_noise_begins_with_the_narrower() -> None:
    keyed = KeyedRandomness(1)
    wide = keyed.uniform(5000, NAMES[3])
    assert np.array_equal(wide[:7], keyed.uniform(7, NAMES[3]))


def test_wide_draws_of_neighbouring_names_do_not_overlap() -> None:
    """The generator counts in a word of its own, not through the names."""
    keyed = KeyedRandomness(1)
    first, second = (keyed.uniform(49_152, Draw(p, Purpose.NOISE)) for p in (7, 8))
    assert np.intersect1d(first, second).size == 0


@pytest.mark.parametrize("other", [KeyedRandomness(6, 1), KeyedRandomness(5, 2)])
def test_seed_and_stream_change_every_draw(other: KeyedRandomness) -> None:
    keyed = KeyedRandomness(5, 1)
    for name in NAMES:
        assert keyed.uniform(1, name) != other.uniform(1, name)


def test_large_seeds_are_taken() -> None:
    assert KeyedRandomness(2**64 + 3).bernoulli(0.5, NAMES[0]) in (True, False)


@pytest.mark.parametrize("purpose", Purpose)
def test_choices_are_uniform_over_positions(purpose: Purpose) -> None:
    keyed = KeyedRandomness(11)
    counts: Counter[tuple[int, ...]] = Counter()
    for position in range(4000):
        counts[(keyed.choice(np.ones(16), Draw(position, purpose)),)] += 1
    assert goodness_of_fit(counts, {(i,): 1 / 16 for i in range(16)}) > 1e-3


@pytest.mark.parametrize(
    "pair",
    [
        (Draw(0, Purpose.TARGET), Draw(0, Purpose.ACCEPT)),
        (Draw(0, Purpose.ACCEPT), Draw(0, Purpose.RESIDUAL)),
        (Draw(0, Purpose.DRAFT), Draw(0, Purpose.DRAFT, 1)),
        (Draw(0, Purpose.DRAFT), Draw(0, Purpose.DRAFT, 0, 1)),
        (Draw(0, Purpose.TARGET), Draw(1, Purpose.TARGET)),
        (Draw(1, Purpose.DRAFT, 0, 0), Draw(0, Purpose.DRAFT, 0, 1)),
    ],
)
def test_draws_with_different_names_are_independent(pair: tuple[Draw, Draw]) -> None:
    """Joint counts over many seeds fit the product of uniforms."""
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(4000):
        keyed = KeyedRandomness(seed)
        counts[tuple(keyed.choice(np.ones(4), name) for name in pair)] += 1
    assert goodness_of_fit(counts, {(i, j): 1 / 16 for i in range(4) for j in range(4)}) > 1e-3


def test_choice_has_the_law_of_its_weights() -> None:
    weights = np.array([0.0, 3.0, 1.0, 0.0, 4.0, 0.0])
    keyed = KeyedRandomness(2)
    counts: Counter[tuple[int, ...]] = Counter()
    for position in range(8000):
        counts[(keyed.choice(weights, Draw(position, Purpose.TARGET)),)] += 1
    assert goodness_of_fit(counts, {(1,): 0.375, (2,): 0.125, (4,): 0.5}) > 1e-3


class Extreme(KeyedRandomness):
    """The smallest and the largest value that a uniform can take."""

    def __init__(self, value: float) -> None:
        super().__init__(0)
        self._value = value

    def uniform(self, size: int, draw: Draw) -> ProbArray:
        return np.full(size, self._value)

    def unit(self, draw: Draw) -> float:
        return self._value


EXTREMES = [Extreme(0.0), Extreme(2.0**-53), Extreme(0.5), Extreme(1 - 2.0**-53)]


@given(
    st.lists(st.sampled_from([0.0, 1e-300, 1e-12, 0.1, 1.0, 7.0]), min_size=1, max_size=9).filter(
        any
    )
)
def test_choice_never_takes_a_zero_weight(weights: list[float]) -> None:
    for keyed in (*EXTREMES, KeyedRandomness(3)):
        assert weights[keyed.choice(np.array(weights), NAMES[0])] > 0


@pytest.mark.parametrize("keyed", EXTREMES)
def test_certain_outcomes_are_certain(keyed: KeyedRandomness) -> None:
    assert keyed.bernoulli(1.0, NAMES[0]) is True
    assert keyed.bernoulli(0.0, NAMES[0]) is False


def test_bernoulli_has_its_probability() -> None:
    keyed = KeyedRandomness(4)
    hits = sum(keyed.bernoulli(0.3, Draw(i, Purpose.ACCEPT)) for i in range(5000))
    assert abs(hits - 1500) < 4 * (5000 * 0.3 * 0.7) ** 0.5


class Bits:
    """Stands in for numpy's generator: every uniform is the same."""

    def __init__(self, value: float) -> None:
        self._value = value

    def random(self, size: int) -> ProbArray:
        return np.full(size, self._value)


@pytest.mark.parametrize("value", [0.0, 2.0**-53, 0.5, 1 - 2.0**-53])
def test_noise_is_open_at_both_ends(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that its logarithms are finite and not zero."""
    monkeypatch.setattr(np.random, "Generator", lambda bits: Bits(value))
    noise = KeyedRandomness(0).uniform(3, NAMES[0])
    assert (noise > 0).all()
    assert (noise < 1).all()


def test_noise_is_uniform() -> None:
    noise = np.sort(KeyedRandomness(9).uniform(20_000, Draw(3, Purpose.NOISE)))
    steps = np.arange(1, len(noise) + 1) / len(noise)
    assert np.abs(noise - steps).max() < 1.95 / len(noise) ** 0.5  # Kolmogorov, p = 1e-3


@pytest.mark.parametrize("size", [511, 512, 513, 1025, 3000])
def test_choice_among_many_inverts_the_cumulative_weights(size: int) -> None:
    weights = np.random.default_rng(size).dirichlet(np.full(size, 0.05))
    weights[weights < np.median(weights)] = 0.0
    cumulative = np.cumsum(weights)
    keyed = KeyedRandomness(5)
    for position in range(500):
        draw = Draw(position, Purpose.TARGET)
        target = keyed.unit(draw) * cumulative[-1]
        expected = int(np.searchsorted(cumulative, target, side="right"))
        assert keyed.choice(weights, draw) == expected
