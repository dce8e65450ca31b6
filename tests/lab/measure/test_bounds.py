"""The most that any verifier accepts: against brute force, linear programming, closed forms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from tests.lab.measure import naive_drafts as naive

from paceline.core.types import Distribution, ProbArray
from paceline.errors import InvalidOption
from paceline.lab.measure.bounds import (
    best_distinct,
    best_fixed,
    best_iid,
    best_top_and_one,
    overlap,
)

Best = Callable[[Distribution, Distribution, int], float]
Tuples = Callable[[ProbArray, int], naive.Tuples]

TEMPERATURE_KINDS: dict[str, tuple[Best, Tuples]] = {
    "independent": (best_iid, naive.independent),
    "distinct": (best_distinct, naive.distinct),
    "top and one": (best_top_and_one, naive.most_probable_and_one),
    "argmax": (best_fixed, naive.argmax),
}


def pair(
    seed: int, size: int, sharpness: float, zeros: int = 0
) -> tuple[Distribution, Distribution]:
    generator = np.random.default_rng([seed, size])
    return (
        naive.distribution(generator, size, sharpness, zeros),
        naive.distribution(generator, size, sharpness, zeros),
    )


@pytest.mark.parametrize("kind", TEMPERATURE_KINDS)
@pytest.mark.parametrize("drafts", [1, 2, 3])
@pytest.mark.parametrize("sharpness", [0.3, 1.5, 5.0])
def test_nested_sets_find_the_minimum_over_all_subsets(
    kind: str, drafts: int, sharpness: float
) -> None:
    best, tuples = TEMPERATURE_KINDS[kind]
    for size in (2, 4, 6):
        for seed in range(4):
            p, q = pair(seed, size, sharpness, zeros=seed % 2)
            truth = naive.best_over_all_subsets(p.probs, tuples(q.probs, drafts))
            assert best(p, q, drafts) == pytest.approx(truth, abs=1e-12)


def transport(p: ProbArray, tuples: naive.Tuples) -> float:
    """The best acceptance over all joint laws of drafts and emitted token."""
    drawn, masses = list(tuples), np.array(list(tuples.values()))
    columns = [(row, token) for row in range(len(drawn)) for token in range(len(p))]
    value = [-float(token in drawn[row]) for row, token in columns]
    by_tuple = [[float(row == each) for row, _ in columns] for each in range(len(drawn))]
    by_token = [[float(token == each) for _, token in columns] for each in range(len(p))]
    solved = linprog(value, A_eq=by_tuple + by_token, b_eq=[*masses, *p], method="highs")
    assert solved.success
    return -float(solved.fun)


@pytest.mark.parametrize("kind", TEMPERATURE_KINDS)
@pytest.mark.parametrize(("size", "drafts"), [(3, 1), (3, 2), (4, 2), (4, 3)])
def test_the_bound_is_the_optimum_of_the_linear_programme(
    kind: str, size: int, drafts: int
) -> None:
    best, tuples = TEMPERATURE_KINDS[kind]
    for seed in range(3):
        p, q = pair(seed + 20, size, 1.5)
        truth = transport(p.probs, tuples(q.probs, drafts))
        assert best(p, q, drafts) == pytest.approx(truth, abs=1e-9)


def test_other_draft_laws_have_other_bounds() -> None:
    """Negative control: the comparisons above tell the laws apart."""
    p, q = pair(3, 5, 1.5)
    found = [round(best(p, q, 2), 6) for best, _ in TEMPERATURE_KINDS.values()]
    assert len(set(found)) == len(TEMPERATURE_KINDS)


@pytest.mark.parametrize("scale", [1e-2, 1e-4, 1e-6, 1e-9])
@pytest.mark.parametrize("drafts", [2, 3, 4])
def test_arrivals_on_very_different_time_scales(scale: float, drafts: int) -> None:
    """Each token of q is `scale` times as likely as the one before, until digits run out."""
    weights = np.array([1.0, scale, scale * 0.9, max(scale**2, 1e-10), max(scale**2, 1e-10) / 2])
    q = Distribution(weights / weights.sum(), None, 5)
    for p in (Distribution(np.full(5, 0.2), None, 5), Distribution(q.probs[::-1].copy(), None, 5)):
        truth = naive.best_over_all_subsets(p.probs, naive.distinct(q.probs, drafts))
        assert best_distinct(p, q, drafts) == pytest.approx(truth, abs=1e-11)


def large(seed: int, size: int, sharpness: float) -> tuple[Distribution, Distribution]:
    """A drafter and a target that agree in part, as models do."""
    generator = np.random.default_rng(seed)
    logits = sharpness * generator.normal(size=size)
    both = np.exp(logits + generator.normal(size=(2, size)))
    both /= both.sum(axis=1, keepdims=True)
    return Distribution(both[0], None, size), Distribution(both[1], None, size)


@pytest.mark.parametrize("sharpness", [0.5, 2.5, 5.0])
def test_two_drafts_of_a_large_vocabulary_have_a_closed_form(sharpness: float) -> None:
    """Q(H) = sum over x in H of q(x) (q(H) - q(x)) / (1 - q(x)), for every prefix."""
    p, q = large(1, 20_000, sharpness)
    order = np.argsort(p.probs / q.probs)
    mine = q.probs[order]
    odds = mine / (1 - mine)
    both = np.cumsum(mine) * np.cumsum(odds) - np.cumsum(odds * mine)
    truth = 1 + min(0.0, float((np.cumsum(p.probs[order]) - both).min()))
    assert best_distinct(p, q, 2) == pytest.approx(truth, abs=1e-11)


@pytest.mark.parametrize("sharpness", [1.0, 3.0])
def test_three_drafts_as_sums_over_pairs(sharpness: float) -> None:
    p, q = large(2, 150, sharpness)
    order = np.argsort(p.probs / q.probs)
    mine, theirs = q.probs[order], p.probs[order]
    left = 1 - mine[:, None] - mine[None, :]
    pairs = mine[:, None] * mine / (1 - mine)[:, None]
    np.fill_diagonal(pairs, 0.0)
    np.fill_diagonal(left, 1.0)
    least = 0.0
    for size in range(1, len(mine) + 1):
        third = np.maximum(mine[:size].sum() - mine[:size, None] - mine[:size], 0.0)
        both = float((pairs[:size, :size] * third / left[:size, :size]).sum())
        least = min(least, float(theirs[:size].sum()) - both)
    assert best_distinct(p, q, 3) == pytest.approx(1 + least, abs=1e-11)


masses = st.just(0.0) | st.floats(1e-6, 1.0)
weights = st.lists(masses, min_size=2, max_size=12).filter(lambda w: max(w) > 0.05)


def normalised(values: list[float]) -> ProbArray:
    array = np.array(values)
    return np.asarray(array / array.sum())


@settings(max_examples=150)
@given(weights, weights, st.integers(1, 5))
def test_more_room_never_lowers_a_bound(
    first: list[float], second: list[float], drafts: int
) -> None:
    size = max(len(first), len(second))
    p, q = (
        Distribution(normalised(values + [0.0] * (size - len(values))), None, size)
        for values in (first, second)
    )
    iid, without = best_iid(p, q, drafts), best_distinct(p, q, drafts)
    assert 0 <= overlap(p, q) <= iid + 1e-12
    assert iid <= without + 1e-12
    assert without <= 1
    assert iid <= best_iid(p, q, drafts + 1) + 1e-12
    assert without <= best_distinct(p, q, drafts + 1) + 1e-12
    assert best_fixed(p, q, drafts) <= best_top_and_one(p, q, drafts + 1) + 1e-12


@pytest.mark.parametrize("best", [best for best, _ in TEMPERATURE_KINDS.values()])
@pytest.mark.parametrize("drafts", [1, 2, 3])
def test_truncated_laws_are_laws(best: Best, drafts: int) -> None:
    """Sparse laws, with supports that overlap in part, against the same laws written out."""
    p, q = pair(5, 9, 1.0, zeros=3)

    def sparse(distribution: Distribution) -> Distribution:
        ids = np.flatnonzero(distribution.probs).astype(np.int64)
        return Distribution(distribution.probs[ids], ids, distribution.size)

    assert best(sparse(p), sparse(q), drafts) == pytest.approx(best(p, q, drafts), abs=1e-12)
    assert best(p, sparse(q), drafts) == pytest.approx(best(p, q, drafts), abs=1e-12)


@pytest.mark.parametrize("drafts", [1, 2, 4])
def test_agreement_and_strangers(drafts: int) -> None:
    p, _ = pair(6, 6, 1.0)
    assert best_iid(p, p, drafts) == pytest.approx(1)
    assert best_distinct(p, p, drafts) == pytest.approx(1)
    assert best_top_and_one(p, p, drafts) >= overlap(p, p) - 1e-12
    left, right = (
        Distribution(np.array([0.3, 0.7, 0, 0]), None, 4),
        Distribution(np.array([0, 0, 0.5, 0.5]), None, 4),
    )
    for best, _ in TEMPERATURE_KINDS.values():
        assert best(left, right, min(drafts, 2)) == 0


def test_more_drafts_than_tokens_are_all_tokens() -> None:
    p, q = pair(7, 5, 1.0, zeros=2)
    drawn = float(p.probs[q.probs > 0].sum())
    for drafts in (3, 4, 8):
        assert best_distinct(p, q, drafts) == pytest.approx(drawn, abs=1e-12)
        assert best_top_and_one(p, q, drafts) == pytest.approx(drawn, abs=1e-12)


@pytest.mark.parametrize("best", [best for best, _ in TEMPERATURE_KINDS.values()])
def test_no_draft_has_no_bound(best: Best) -> None:
    p, q = pair(8, 3, 1.0)
    with pytest.raises(InvalidOption, match="1 or more"):
        best(p, q, 0)
