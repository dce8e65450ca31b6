"""Dynamic sparse trees of parallel prompt decoding (Chen et al. 2024, arXiv:2405.18628, sec. 4).

Rows are split between candidates and prompt tokens, which feed the next step. The state is the
number of prompt tokens after the accepted node. The stationary distribution of the Markov
chain of states gives the tokens per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.core.types import IntArray, ProbArray
from paceline.policy.cost import CostModel
from paceline.trees.shapes import StaticShape, chances, from_rank_accuracies, layout


@dataclass(frozen=True, slots=True)
class StateTree:
    """Draft of one state.

    Attributes:
        shape: the candidates, most likely first.
        chances: float64 `[n]`, acceptance probability of each candidate.
        prompts: int64 `[1 + n]`, prompt tokens after the root and each candidate.
    """

    shape: StaticShape
    chances: ProbArray
    prompts: IntArray

    @property
    def tokens(self) -> float:
        """Expected committed tokens per step."""
        return 1.0 + float(self.chances.sum())

    @property
    def ends(self) -> ProbArray:
        """float64 `[1 + n]`, probability that the root, or each candidate, is accepted last."""
        return endings(self.shape, self.chances)

    @property
    def rows(self) -> int:
        return len(self.shape) + int(self.prompts.sum())

    def seconds(self, costs: CostModel) -> float:
        """Return the time of a step."""
        return costs.time(1 + self.rows)


@dataclass(frozen=True, slots=True)
class SparseTree:
    """Trees of all states, by number of prompt tokens, 0 first."""

    states: tuple[StateTree, ...]

    @property
    def transitions(self) -> ProbArray:
        """float64 `[states, states]`, probability of a state (column) after another (row)."""
        out = np.zeros((len(self.states), len(self.states)))
        for row, state in zip(out, self.states, strict=True):
            np.add.at(row, state.prompts, state.ends)
        return out

    @property
    def distribution(self) -> ProbArray:
        """float64 `[states]`, stationary distribution."""
        return stationary(self.transitions)

    @property
    def tokens(self) -> float:
        """Expected committed tokens per step, in the long run."""
        return float(self.distribution @ [state.tokens for state in self.states])

    def seconds(self, costs: CostModel) -> float:
        """Return the expected time of a step, in the long run."""
        return float(self.distribution @ [state.seconds(costs) for state in self.states])


def endings(shape: StaticShape, reached: ProbArray) -> ProbArray:
    """Return the probability that verification ends at each place, float64 `[1 + n]`, root first.

    `reached` is float64 `[n]`, the acceptance probability of each node.
    """
    out = np.concatenate([[1.0], reached])
    if shape:
        np.subtract.at(out, layout(shape).parents + 1, reached)
    ends: ProbArray = np.maximum(out, 0.0)  # of rounding
    return ends


def stationary(transitions: ProbArray) -> ProbArray:
    """Return the limit distribution pi = pi T from state 0; rows of `transitions` sum to one."""
    # The lazy chain has the same stationary distribution and no periods; then square it.
    steps = (transitions + np.eye(len(transitions))) / 2
    for _ in range(50):
        steps = steps @ steps
        steps /= steps.sum(axis=1, keepdims=True)
    distribution: ProbArray = steps[0]
    return distribution


def allot(ends: ProbArray, worth: Sequence[float], rows: int) -> IntArray:
    """Allocate `rows` prompt tokens to places, for the most expected tokens in the next step.

    Knapsack optimum; the paper's greedy removal agrees with it for diminishing returns.

    Args:
        ends: float64 `[places]`, probability that verification ends at each.
        worth: of the next step, by number of prompt tokens, 0 first.
    """
    best = np.zeros(rows + 1)
    picks = []
    for chance in ends.tolist():
        options = np.full((len(worth), rows + 1), -np.inf)
        for count, value in enumerate(worth[: rows + 1]):
            options[count, count:] = best[: rows + 1 - count] + chance * (value - worth[0])
        picks.append(options.argmax(axis=0))  # of equals the fewest
        best = options.max(axis=0)
    counts = np.zeros(len(picks), dtype=np.int64)
    for place in reversed(range(len(picks))):
        counts[place] = picks[place][rows]
        rows -= int(counts[place])
    return counts


def sparse_tree(accuracies: ProbArray, candidates: int, rows: int) -> SparseTree:
    """Build trees of `rows` rows each: at most `candidates`, most likely first, then prompt tokens.

    `accuracies` is float64 `[m, rank]`: of prompt token m after m - 1 accepted candidates.
    """
    states = range(len(accuracies) + 1)
    shapes = [from_rank_accuracies(accuracies, candidates, state) for state in states]
    reached = [chances(shape, accuracies) for shape in shapes]
    worth = [1.0 + float(each.sum()) for each in reached]
    return SparseTree(
        tuple(
            StateTree(shape, each, allot(endings(shape, each), worth, rows - len(shape)))
            for shape, each in zip(shapes, reached, strict=True)
        )
    )


def best_tree(accuracies: ProbArray, most: int, costs: CostModel | None = None) -> SparseTree:
    """Return the trees of most committed tokens per second, or per step without `costs`.

    With `costs`, sizes below `most` at which forwards were measured are considered too.
    """
    sizes = {most}
    if costs is not None:
        sizes |= {0} | {size - 1 for size in costs.sizes if size <= most}

    def rate(tree: SparseTree) -> float:
        return tree.tokens / (1.0 if costs is None else tree.seconds(costs))

    trees = (
        sparse_tree(accuracies, candidates, rows)
        for rows in sorted(sizes)
        for candidates in range(rows + 1)
    )
    return max(trees, key=rate)
