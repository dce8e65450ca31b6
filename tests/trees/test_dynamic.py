"""Dynamic growth spends nodes where verification is most likely to get, and asks in batches."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core import tree as trees
from paceline.core.types import ROOT, Budget, Distribution, TokenTree
from paceline.proof.cases import grown
from paceline.proof.tabular import TabularModel
from paceline.sampling.distributions import without
from paceline.sampling.randomness import KeyedRandomness
from paceline.trees.base import DistributionRequest, run_batched
from paceline.trees.dyspec import Dynamic, Threshold

MODEL = TabularModel(4, 3, seed=9, sharpness=1.5)


def places(draft: TokenTree, depth: int) -> tuple[list[float], list[list[float]]]:
    """The value of the place where each node was drawn, and of all places open after it."""
    open_: dict[int, tuple[float, Distribution]] = {ROOT: (1.0, MODEL.distribution((0,)))}
    levels = trees.depths(draft).tolist()
    spent: list[float] = []
    left: list[list[float]] = []
    for node, (token, parent) in enumerate(
        zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True)
    ):
        value, rest = open_.pop(parent)
        spent.append(value)
        chance = rest.prob(token)
        smaller = without(rest, token)
        if smaller is not None:
            open_[parent] = value * (1 - chance), smaller
        if levels[node] < depth:
            path = draft.tokens[list(trees.path_to(draft, node))].tolist()
            open_[node] = value * chance, MODEL.distribution((0, *path))
        left.append([other for other, _ in open_.values()])
    return spent, left


@settings(max_examples=50)
@given(st.integers(0, 999), st.integers(1, 14), st.integers(1, 4))
def test_no_place_left_open_is_better_than_one_that_was_used(
    seed: int, nodes: int, depth: int
) -> None:
    draft = grown(Dynamic(), MODEL.distribution)((0,), KeyedRandomness(seed), Budget(nodes, depth))
    spent, left = places(draft, depth)
    for index in range(1, len(spent)):
        assert spent[index] == pytest.approx(max(left[index - 1]))
    assert len(draft) == nodes or not left[-1]


@settings(max_examples=50)
@given(st.integers(0, 999), st.integers(1, 14), st.integers(1, 4), st.floats(0.02, 0.9))
def test_a_threshold_uses_all_places_that_reach_it_and_no_others(
    seed: int, nodes: int, depth: int, least: float
) -> None:
    draft = grown(Threshold(least), MODEL.distribution)(
        (0,), KeyedRandomness(seed), Budget(nodes, depth)
    )
    spent, left = places(draft, depth)
    assert min(spent) >= least * (1 - 1e-9)
    if len(draft) < nodes:
        assert max(left[-1], default=0.0) < least * (1 + 1e-9)


def questions(growth: Dynamic | Threshold, budget: Budget, seed: int) -> int:
    """How many forwards a draft model would need."""
    count = 0

    def answer(asks: Mapping[int, DistributionRequest]) -> dict[int, list[Distribution]]:
        nonlocal count
        count += 1
        tree, nodes = asks[0]
        paths = [tree.tokens[list(trees.path_to(tree, node))].tolist() for node in nodes]
        return {0: [MODEL.distribution((0, *path)) for path in paths]}

    run_batched([growth.grow(budget, KeyedRandomness(seed), 1)], answer)
    return count


def test_one_forward_answers_for_all_nodes_that_wait() -> None:
    """Fewer forwards than nodes with children; a threshold needs one per level."""
    for seed in range(10):
        draft = grown(Dynamic(), MODEL.distribution)((0,), KeyedRandomness(seed), Budget(14, 4))
        assert questions(Dynamic(), Budget(14, 4), seed) < len(set(draft.parents.tolist()))
        assert questions(Threshold(0.01), Budget(40, 4), seed) == 4
