"""The exhaustive optimum is one, and the search by TPE finds it, the constraint included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.errors import InvalidOption
from paceline.training.vocabulary_search import search
from paceline.training.vocabulary_size import Balance

VOCABULARY = 4096


def zipf(exponent: float) -> np.ndarray:
    counts = 1e7 / np.arange(1, VOCABULARY + 1) ** exponent
    return np.random.default_rng(0).permutation(counts.astype(np.int64))


def balance(exponent: float = 1.1, **changed: Any) -> Balance:
    settings = {"body": 5e6, "width": 576, "smallest": 64, "step": 64, **changed}
    return Balance(zipf(exponent), **settings)


def test_the_figures_of_a_size_are_their_definitions() -> None:
    counts = np.array([1, 6, 3])
    found = Balance(counts, body=4, width=3, alpha=0.25).at(2)
    assert found.coverage == pytest.approx(0.9)
    assert found.reduction == pytest.approx(1 - (4 + 12) / (4 + 18))
    assert found.utility == pytest.approx(0.25 * found.coverage + 0.75 * found.reduction)


def test_the_whole_vocabulary_covers_all_and_saves_nothing() -> None:
    found = balance().at(VOCABULARY)
    assert (found.coverage, found.reduction) == (1.0, 0.0)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.9, 1.0])
def test_no_other_size_is_better(alpha: float) -> None:
    weighed = balance(alpha=alpha, least_coverage=0.6)
    best = weighed.best()
    rivals = [weighed.at(size) for size in range(64, VOCABULARY + 1, 64)]
    assert best.utility == max(each.utility for each in rivals if each.coverage >= 0.6)
    assert best.coverage >= 0.6


@pytest.mark.parametrize(("exponent", "alpha"), [(0.9, 0.5), (0.9, 0.6), (1.2, 0.6), (1.2, 0.8)])
def test_the_search_finds_the_exhaustive_optimum(exponent: float, alpha: float) -> None:
    weighed = balance(exponent, alpha=alpha)
    best = weighed.best()
    assert 64 < best.size < VOCABULARY, "an optimum at the edge would be found by chance"
    assert search(weighed, trials=60) == best


def test_the_search_keeps_to_the_least_coverage() -> None:
    free, bound = balance(alpha=0.4), balance(alpha=0.4, least_coverage=0.9)
    assert free.best().coverage < 0.9
    assert search(bound, trials=60) == bound.best()
    assert bound.best().size == min(s for s in bound.sizes.tolist() if bound.coverage(s) >= 0.9)


def test_one_trial_gives_a_size_that_covers_enough() -> None:
    assert search(balance(least_coverage=0.99), trials=1).size == VOCABULARY


def test_what_cannot_be_had_is_named() -> None:
    with pytest.raises(InvalidOption, match=r"256 tokens cover \d\d\.\d\d%, less than the 99.00%"):
        balance(largest=256, least_coverage=0.99)
    with pytest.raises(InvalidOption, match="alpha must be"):
        balance(alpha=2)
    with pytest.raises(InvalidOption, match="largest size must be 1 to 4096 tokens"):
        balance(largest=5000)
