"""Recursive rejection: how much it accepts, with and without replacement."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.helpers.sampled_drafts import accepted, best_acceptance, mean_accepted

from paceline.core.types import Budget
from paceline.proof.tabular import TabularModel
from paceline.sampling.distributions import residual
from paceline.trees.drawn import Branching, Iid, Paths
from paceline.verifiers.recursive import Recursive, RecursiveDistinct

SEEDS = range(4)


def models(seed: int, vocabulary: int = 4) -> tuple[TabularModel, TabularModel]:
    return TabularModel(vocabulary, 3, seed, 1.2), TabularModel(vocabulary, 3, seed + 100, 1.2)


@pytest.mark.parametrize("drafts", [1, 2, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_acceptance_with_replacement_is_that_of_independent_rounds(seed: int, drafts: int) -> None:
    """Residuals do not depend on which token was rejected, so the rounds' chances multiply."""
    p, q = models(seed)
    left, refused = p.distribution((0,)), 1.0
    for _ in range(drafts):
        refused *= 1 - np.minimum(left.probs, q.distribution((0,)).probs).sum()
        left = residual(left, q.distribution((0,)))
    found = accepted(Recursive(), Iid([drafts]), p.distribution, q.distribution, Budget(drafts, 1))
    assert found.get(0, 0.0) == pytest.approx(refused, abs=1e-12)


@pytest.mark.parametrize("shape", [[2], [3], [2, 1]], ids=str)
@pytest.mark.parametrize("seed", SEEDS)
def test_without_replacement_is_never_under_with_replacement(seed: int, shape: list[int]) -> None:
    """On the same number of draws, and all the more on the same number of nodes."""
    p, q = models(seed, vocabulary=3)
    budget = Budget(shape[0] * len(shape), len(shape))
    repeated = mean_accepted(Recursive(), Iid(shape), p.distribution, q.distribution, budget)
    distinct = mean_accepted(
        RecursiveDistinct(), Branching(shape), p.distribution, q.distribution, budget
    )
    assert distinct >= repeated - 1e-12


@pytest.mark.parametrize("drafts", [2, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_more_drafts_are_accepted_more_often_and_never_beyond_the_optimum(
    seed: int, drafts: int
) -> None:
    p, q = models(seed)
    distribution = q.distribution((0,))

    def all_repeated(chosen: list[int]) -> float:
        return float(sum(map(distribution.prob, chosen)) ** drafts)

    def all_distinct(chosen: list[int]) -> float:
        total = 0.0
        for order in itertools.permutations(chosen, drafts):
            chance, left = 1.0, 1.0
            for token in order:
                chance *= distribution.prob(token) / left
                left -= distribution.prob(token)
            total += chance
        return total

    def acceptance(distinct: bool, count: int) -> float:
        rule, growth = (RecursiveDistinct(), Branching) if distinct else (Recursive(), Iid)
        return mean_accepted(
            rule, growth([count]), p.distribution, q.distribution, Budget(count, 1)
        )

    for distinct, inside in ((False, all_repeated), (True, all_distinct)):
        found = acceptance(distinct, drafts)
        assert acceptance(distinct, drafts - 1) - 1e-12 <= found
        assert found <= best_acceptance(p.distribution((0,)), inside) + 1e-12


@pytest.mark.parametrize("seed", SEEDS)
def test_paths_and_trees_of_one_level_are_the_same_draft(seed: int) -> None:
    p, q = models(seed)
    paths = accepted(Recursive(), Paths(2), p.distribution, q.distribution, Budget(2, 1))
    tree = accepted(Recursive(), Iid([2]), p.distribution, q.distribution, Budget(2, 1))
    assert paths == pytest.approx(tree, abs=1e-12)
