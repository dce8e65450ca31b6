"""Branching factors and budgets: who gets how many draws."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.core.types import Budget, Distribution
from paceline.proof.cases import grown
from paceline.sampling.distributions import from_dense
from paceline.sampling.randomness import KeyedRandomness
from paceline.trees.base import TreeExpansion
from paceline.trees.drawn import Branching, TopAndOne


def uniform(context: tuple[int, ...]) -> Distribution:
    return from_dense(np.full(9, 1 / 9))


@pytest.mark.parametrize(
    ("widths", "budget", "parents"),
    [
        ([2], Budget(7, 2), [-1, -1, 0, 0, 1, 1]),
        ([2, 1], Budget(9, 3), [-1, -1, 0, 1, 2, 3]),
        ([3, 2], Budget(6, 2), [-1, -1, -1, 0, 0, 1]),
        ([3, 2], Budget(2, 2), [-1, -1]),
        ([2, 2, 1], Budget(20, 4), [-1, -1, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ([1], Budget(3, 5), [-1, 0, 1]),
        ([4], Budget(5, 1), [-1, -1, -1, -1]),
        ([2], Budget(0, 3), []),
        ([2], Budget(3, 0), []),
    ],
)
@pytest.mark.parametrize("make", [Branching, TopAndOne, lambda w: Branching(w, noise=True)])
def test_elders_are_served_first_and_the_last_factor_goes_on(
    make: type[Branching], widths: list[int], budget: Budget, parents: list[int]
) -> None:
    for seed in range(5):
        draft = grown(make(widths), uniform)((0,), KeyedRandomness(seed), budget)
        assert draft.parents.tolist() == parents


@pytest.mark.parametrize("growth", [Branching([3]), TopAndOne([3])], ids=lambda g: g.name)
def test_a_small_support_gets_fewer_children_and_leaves_room_below(growth: TreeExpansion) -> None:
    narrow = from_dense(np.array([0.5, 0.5, 0.0, 0.0]))
    draft = grown(growth, lambda context: narrow)((0,), KeyedRandomness(1), Budget(6, 3))
    assert draft.parents.tolist() == [-1, -1, 0, 0, 1, 2]  # node 1 was left one of three
