"""Sparse trees of prompt tokens against brute force, and their stationary law against a walk."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from paceline.core.types import ProbArray
from paceline.methods.ppd.tree import (
    SparseTree,
    StateTree,
    allot,
    best_tree,
    endings,
    sparse_tree,
    stationary,
)
from paceline.policy.cost import CostModel
from paceline.trees.shapes import chances, from_rank_accuracies

ACCURACIES = np.array([[0.40, 0.15, 0.08, 0.04], [0.25, 0.10, 0.05, 0.02], [0.15, 0.08, 0.02, 0.0]])


def random_accuracies(rng: np.random.Generator, depth: int, ranks: int) -> ProbArray:
    """Shares of ranks that sum to less than one, in any order."""
    return rng.dirichlet(np.ones(ranks + 1), depth)[:, :ranks]


def walk(tree: SparseTree, accuracies: ProbArray, steps: int) -> tuple[ProbArray, float]:
    """Shares of states and tokens per step of decoding that draws the right ranks."""
    rng = np.random.default_rng(0)
    draws = rng.random((steps, len(accuracies)))
    columns = zip(accuracies, draws.T, strict=True)
    ranks = np.stack([np.searchsorted(np.cumsum(row), drawn) for row, drawn in columns], 1)
    visits, committed, state = np.zeros(len(tree.states)), 0, 0
    for right in map(tuple, ranks.tolist()):
        visits[state] += 1
        now = tree.states[state]
        place = 0
        for depth in range(1, len(right) + 1):
            if right[:depth] not in now.shape:
                break
            place = now.shape.index(right[:depth]) + 1
            committed += 1
        committed += 1
        state = int(now.prompts[place])
    return visits / steps, committed / steps


@pytest.mark.parametrize("seed", range(6))
def test_prompt_tokens_are_allotted_as_by_trying_everything(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ends = rng.dirichlet(np.ones(4))
    worth = 1 + np.cumsum(np.concatenate([[0], rng.random(2 + seed % 2)]))  # not always concave
    for rows in range(7):
        every = itertools.product(range(len(worth)), repeat=len(ends))
        best = max(float(ends @ worth[list(c)]) for c in every if sum(c) <= rows)
        counts = allot(ends, worth.tolist(), rows)
        assert counts.sum() <= rows
        assert float(ends @ worth[counts]) == pytest.approx(best)


def test_removing_the_cheapest_one_by_one_gives_the_same_where_gains_shrink() -> None:
    """The algorithm of the paper."""
    shape = from_rank_accuracies(ACCURACIES, 5, 3)
    ends = endings(shape, chances(shape, ACCURACIES))
    worth = [1.0, 1.6, 1.9, 2.0]
    gains = np.diff(worth)
    for rows in range(3 * len(ends) + 1):
        counts = np.full(len(ends), 3)
        while counts.sum() > rows:
            losses = [e * gains[c - 1] if c else np.inf for e, c in zip(ends, counts, strict=True)]
            counts[int(np.argmin(losses))] -= 1
        found = allot(ends, worth, rows)
        assert np.array(worth)[found] @ ends == pytest.approx(np.array(worth)[counts] @ ends)


@pytest.mark.parametrize("seed", range(4))
def test_with_one_prompt_token_no_pair_of_trees_does_better(seed: int) -> None:
    """Every set of ranks and every choice of who gets the prompt token, in the long run."""
    accuracies = random_accuracies(np.random.default_rng(seed), 1, 3)
    for rows in range(1, 6):
        best = 1.0
        for size in range(min(rows, 3) + 1):
            for ranks in itertools.combinations(range(3), size):
                shape = tuple((rank,) for rank in ranks)
                reached = chances(shape, accuracies)
                for prompts in itertools.product((0, 1), repeat=1 + size):
                    if size + sum(prompts) > rows:
                        continue
                    ask = StateTree((), np.zeros(0), np.array([1]))
                    tree = SparseTree((ask, StateTree(shape, reached, np.array(prompts))))
                    best = max(best, tree.tokens)
        assert best_tree(accuracies, rows).tokens == pytest.approx(best)


def test_endings_are_a_law() -> None:
    shape = from_rank_accuracies(ACCURACIES, 12, 3)
    ends = endings(shape, chances(shape, ACCURACIES))
    assert ends.min() >= 0
    assert ends.sum() == pytest.approx(1)


@pytest.mark.parametrize(("candidates", "rows"), [(2, 4), (4, 9), (6, 16)])
def test_the_stationary_law_is_that_of_a_long_walk(candidates: int, rows: int) -> None:
    tree = sparse_tree(ACCURACIES, candidates, rows)
    distribution = tree.distribution
    assert distribution @ tree.transitions == pytest.approx(distribution)
    assert tree.transitions.sum(axis=1) == pytest.approx(np.ones(4))
    shares, tokens = walk(tree, ACCURACIES, 20_000)
    assert shares == pytest.approx(distribution, abs=0.02)
    assert tokens == pytest.approx(tree.tokens, rel=0.02)
    # A walk in a world where guesses are right half as often is told apart.
    assert walk(tree, ACCURACIES / 2, 20_000)[1] != pytest.approx(tree.tokens, rel=0.05)


def test_a_chain_with_a_period_has_a_law_too() -> None:
    assert stationary(np.array([[0.0, 1.0], [1.0, 0.0]])) == pytest.approx([0.5, 0.5])
    assert stationary(np.array([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])) == (
        pytest.approx([0, 1, 0])
    )


@pytest.mark.parametrize("rows", [1, 5, 9, 16])
def test_no_tree_is_larger_than_allowed_and_more_rows_are_worth_more(rows: int) -> None:
    tree, larger = best_tree(ACCURACIES, rows), best_tree(ACCURACIES, rows + 3)
    assert max(state.rows for state in tree.states) <= rows
    assert larger.tokens >= tree.tokens
    for have, state in enumerate(tree.states):
        assert max(map(len, state.shape), default=0) <= have


def test_dear_rows_make_smaller_trees_and_at_last_none() -> None:
    rows = []
    for price in (0.001, 0.02, 0.05, 0.5):
        costs = CostModel(range(1, 14), [1.0 + n * price for n in range(13)])
        tree = best_tree(ACCURACIES, 12, costs)
        rows.append(max(state.rows for state in tree.states))
        every = [
            sparse_tree(ACCURACIES, candidates, size)
            for size in range(13)
            for candidates in range(size + 1)
        ]
        assert tree.tokens / tree.seconds(costs) == max(t.tokens / t.seconds(costs) for t in every)
    assert rows == sorted(rows, reverse=True)
    assert rows[0] > rows[2] > rows[3] == 0
