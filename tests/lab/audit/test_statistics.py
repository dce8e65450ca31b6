"""The tests hold their level, and find what is there."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from paceline.lab.audit.checks import Features, compare, deviance, fit, holm, pool

LAW = {0: 0.4, 1: 0.3, 2: 0.2, 3: 0.08, 4: 0.02}
RUNS = 400


def draws(distribution: dict[int, float], size: int, seed: int) -> list[int]:
    values, probs = list(distribution), list(distribution.values())
    return np.random.default_rng(seed).choice(values, size, p=probs).tolist()


def chains(size: int, seed: int, stay: float = 0.5) -> list[tuple[int, ...]]:
    """Sequences of three tokens in which a token is often repeated."""
    generator = np.random.default_rng(seed)
    out = []
    for _ in range(size):
        tokens = [int(generator.integers(4))]
        while len(tokens) < 3:
            again = generator.random() < stay
            tokens.append(tokens[-1] if again else int(generator.integers(4)))
        out.append(tuple(tokens))
    return out


def within(count: int, runs: int, rate: float) -> bool:
    """Whether `count` of `runs` is not above `rate` by more than chance."""
    return count <= runs * rate + 3.3 * math.sqrt(runs * rate * (1 - rate))


def test_holm_against_a_computation_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_fit_is_that_of_the_exact_multinomial_test() -> None:
    """Six draws over three cells: few enough to add up every outcome."""
    cells = pool({0: 0.5, 1: 0.3, 2: 0.2}, 10**6)
    outcomes = [0, 0, 2, 2, 2, 1]
    seen = deviance(cells.count(outcomes), cells.probs)
    exact = 0.0
    for each in itertools.product(range(3), repeat=6):
        if deviance(cells.count(each), cells.probs) >= seen - 1e-9:
            exact += math.prod(cells.probs[list(each)])
    assert fit(outcomes, cells, 20_000, 1) == pytest.approx(exact, abs=0.012)


@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_the_fit_holds_its_level(rate: float) -> None:
    cells = pool(LAW, 60)
    below = sum(fit(draws(LAW, 60, seed), cells, 399, seed) <= rate for seed in range(RUNS))
    assert within(below, RUNS, rate)
    assert below > RUNS * rate / 3, "a test that never rejects holds any level"


def test_the_fit_sees_another_law() -> None:
    other = {0: 0.3, 1: 0.3, 2: 0.2, 3: 0.18, 4: 0.02}
    assert fit(draws(other, 500, 3), pool(LAW, 500), 999, 0) == 1 / 1000


def test_what_a_partial_law_lacks_is_one_cell() -> None:
    cells = pool({7: 0.5, 8: 0.25, 9: 0.001}, 100)
    assert cells.probs == pytest.approx([0.5, 0.25, 0.25])
    assert cells.count([7, 8, 9, 10, "x"]).tolist() == [1, 1, 3]


def test_a_token_without_probability_is_never_forgiven() -> None:
    assert fit([0, 1, 2], pool({0: 0.5, 1: 0.5}, 10**6), 99, 0) == 1 / 100


@pytest.mark.parametrize(("size", "other"), [(40, 40), (40, 80)])
def test_the_two_sample_test_holds_its_level(size: int, other: int) -> None:
    below, runs = 0, RUNS // 2
    for seed in range(runs):
        both = chains(size, 2 * seed) + chains(other, 2 * seed + 1)
        below += compare(Features(both, min(size, other)), size, 99, seed).p_value <= 0.1
    assert within(below, runs, 0.1)
    assert below > runs * 0.1 / 3


def test_the_two_sample_test_sees_and_places_a_difference() -> None:
    both = chains(300, 1) + chains(300, 2, stay=0.75)
    test = compare(Features(both, 300), 300, 999, 0)
    assert test.p_value <= 0.005
    assert test.group in (("prefix", 2), ("prefix", 3)), "single tokens have the same law"
    shifted = [(first, second, 0) for first, second, _ in chains(300, 3)]
    test = compare(Features(chains(300, 1) + shifted, 300), 300, 999, 0)
    assert test.group in (("token", 3), ("prefix", 3))


def test_constant_sequences_do_not_differ() -> None:
    test = compare(Features([(1, 2)] * 40, 20), 20, 99, 0)
    assert (test.p_value, test.group) == (1.0, None)
    apart = compare(Features([(1, 2)] * 20 + [(1, 3)] * 20, 20), 20, 999, 0)
    assert apart.p_value == 1 / 1000


def test_cells_depend_on_both_samples_alike() -> None:
    first, second = chains(50, 1), chains(50, 2)
    one, other = Features(first + second, 50), Features(second + first, 50)
    assert one.groups == other.groups
    sums = [sorted(each.tally(50)[1] @ each.kinds) for each in (one, other)]
    assert sums[0] == sums[1]
    assert min(sums[0]) >= 1
