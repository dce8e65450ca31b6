"""Draws without replacement: one after another, and by a race, have one law."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.types import Distribution
from paceline.proof.compare import goodness_of_fit, max_error
from paceline.proof.oracle import Joint, enumerate_distribution
from paceline.sampling.distributions import from_dense, gumbel_max
from paceline.sampling.gumbel import gumbel_top_k
from paceline.sampling.randomness import Draw, KeyedRandomness, Purpose, Randomness
from paceline.trees.base import Names, race, successive

Q = np.array([0.4, 0.05, 0.3, 0.25])
SPARSE = Distribution(Q, np.array([1, 3, 4, 7]), 9)
RUNS = 10_000


def drawn(q: Distribution, count: int, randomness: Randomness) -> tuple[int, ...]:
    draws = successive(q, Names(1, 0), randomness)
    return tuple(token for token, _ in itertools.islice(draws, count))


def ordered(count: int) -> Joint:
    """The exact law of `count` draws without replacement from Q, in their order."""
    joint: Joint = {}
    for order in itertools.permutations(range(len(Q)), count):
        chance, left = 1.0, 1.0
        for index in order:
            chance *= Q[index] / left
            left -= Q[index]
        joint[order] = chance
    return joint


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_successive_draws_renormalise_what_is_left(count: int) -> None:
    found = enumerate_distribution(lambda r: drawn(from_dense(Q), count, r))
    assert max_error(found, ordered(count)) < 1e-12


def test_successive_draws_name_tokens_of_a_sparse_support() -> None:
    found = enumerate_distribution(lambda r: drawn(SPARSE, 2, r))
    wanted = {(SPARSE.token(a), SPARSE.token(b)): c for (a, b), c in ordered(2).items()}
    assert max_error(found, wanted) < 1e-12


def test_successive_draws_end_where_nothing_is_left() -> None:
    distribution = from_dense(np.array([0.0, 1.0 - 1e-14, 1e-14]))
    found = drawn(distribution, 3, KeyedRandomness(0))
    assert found == (1,)


def raced(count: int, power: float = 1.0) -> Counter[tuple[int, ...]]:
    counts: Counter[tuple[int, ...]] = Counter()
    noise = KeyedRandomness(11).uniform(RUNS * len(Q), Draw(1, Purpose.DRAFT))
    for uniform in noise.reshape(RUNS, len(Q)):
        counts[tuple(race(Q**power, uniform, count).tolist())] += 1
    return counts


@pytest.mark.parametrize("count", [2, 3])
def test_a_race_has_the_law_of_successive_draws(count: int) -> None:
    assert goodness_of_fit(raced(count), ordered(count)) > 1e-3


def test_a_race_at_another_temperature_is_caught() -> None:
    assert goodness_of_fit(raced(2, power=0.8), ordered(2)) < 1e-6


@given(st.integers(0, 999), st.integers(1, 5))
def test_finishers_come_in_the_order_of_the_perturbed_logarithms(seed: int, count: int) -> None:
    generator = np.random.default_rng(seed)
    probs = generator.dirichlet(np.full(6, 0.5)) * (generator.random(6) < 0.7)
    uniform = generator.uniform(1e-9, 1, 6)
    with np.errstate(divide="ignore"):
        perturbed = np.log(probs) - np.log(-np.log(uniform))
    wanted = [i for i in np.argsort(-perturbed).tolist() if probs[i] > 0][:count]
    assert race(probs, uniform, count).tolist() == wanted


@given(st.integers(0, 999), st.booleans())
def test_the_winner_is_the_coupled_token(seed: int, sparse: bool) -> None:
    """Drafts with shared noise and coupled verification agree."""
    randomness = KeyedRandomness(seed)
    distribution = SPARSE if sparse else from_dense(Q)
    ids = np.arange(distribution.size) if distribution.ids is None else distribution.ids
    noise = randomness.noise(Draw(5, Purpose.NOISE))
    sample = race(distribution.probs, np.exp(-noise.of(ids)), 1)
    assert distribution.token(int(sample[0])) == gumbel_max(distribution, 5, randomness)
    assert gumbel_top_k(distribution, noise, 2)[0] == gumbel_max(distribution, 5, randomness)
