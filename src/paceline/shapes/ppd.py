"""Dynamic sparse trees of parallel prompt decoding (Chen et al. 2024, arXiv:2405.18628, section 4).

Chains of prompt tokens stand behind nodes of a draft, and those behind the accepted node say what
the next draft may hold. So rows are spent on two things: candidates, which may be accepted now, and
prompt tokens, from which the next step lives. A state is the number of prompt tokens that stood
behind the accepted node: candidates can be as deep. Every state has a tree of its own, a Markov
chain leads from one to the next, and its stationary law says what the trees are worth together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.controllers.cost import CostModel
from paceline.shapes.static import StaticShape, chances, from_rank_accuracies, layout
from paceline.types import ROOT, IntArray, ProbArray


@dataclass(frozen=True, slots=True)
class StateTree:
    """What is drafted in one state.

    Attributes:
        shape: the candidates, likeliest first.
        chances: float64 `[n]`, chance that each candidate is accepted.
        prompts: int64 `[1 + n]`, how many prompt tokens stand behind the root and each candidate.
    """

    shape: StaticShape
    chances: ProbArray
    prompts: IntArray

    @property
    def tokens(self) -> float:
        """Expected committed tokens of a step, the target's own included."""
        return 1.0 + float(self.chances.sum())

    @property
    def ends(self) -> ProbArray:
        """float64 `[1 + n]`, chance that the root, or each candidate, is the last one accepted."""
        return endings(self.shape, self.chances)

    @property
    def rows(self) -> int:
        """Candidates and prompt tokens."""
        return len(self.shape) + int(self.prompts.sum())

    def seconds(self, costs: CostModel, context: int) -> float:
        """Time of a step.

        Args:
            costs: what forwards cost.
            context: tokens before the draft, which every path attends to.
        """
        inner = {ROOT, *layout(self.shape).parents.tolist()} if self.shape else set()
        open_ends = [place - 1 not in inner for place in range(len(self.prompts))]
        branches = max(0, int(np.count_nonzero(np.array(open_ends) | (self.prompts > 0))) - 1)
        extra = costs.branch * context * branches + costs.fork * (branches > 0)
        return costs.time(1 + self.rows) + extra


@dataclass(frozen=True, slots=True)
class SparseTree:
    """The trees of all states.

    Attributes:
        states: by number of prompt tokens that there are, 0 first.
    """

    states: tuple[StateTree, ...]

    @property
    def transitions(self) -> ProbArray:
        """float64 `[states, states]`, chance to be in a state (column) after another (row)."""
        out = np.zeros((len(self.states), len(self.states)))
        for row, state in zip(out, self.states, strict=True):
            np.add.at(row, state.prompts, state.ends)
        return out

    @property
    def law(self) -> ProbArray:
        """float64 `[states]`, share of the steps that are made in each state in the long run."""
        return stationary(self.transitions)

    @property
    def tokens(self) -> float:
        """Expected committed tokens per step in the long run."""
        return float(self.law @ [state.tokens for state in self.states])

    def seconds(self, costs: CostModel, context: int = 0) -> float:
        """Expected time of a step in the long run."""
        return float(self.law @ [state.seconds(costs, context) for state in self.states])


def endings(shape: StaticShape, reached: ProbArray) -> ProbArray:
    """float64 `[1 + n]`, chance that verification ends at the root, or at each node.

    Args:
        shape: the nodes.
        reached: float64 `[n]`, chance that each node is accepted.
    """
    out = np.concatenate([[1.0], reached])
    if shape:
        np.subtract.at(out, layout(shape).parents + 1, reached)
    ends: ProbArray = np.maximum(out, 0.0)  # of rounding
    return ends


def stationary(transitions: ProbArray) -> ProbArray:
    """The law pi = pi T that a chain which begins in state 0 tends to.

    The chain is slowed down (it stays where it is every other time), which keeps the law and rids
    it of periods, and its steps are doubled until nothing changes.

    Args:
        transitions: float64 `[n, n]`, rows sum to one.
    """
    steps = (transitions + np.eye(len(transitions))) / 2
    for _ in range(50):
        steps = steps @ steps
        steps /= steps.sum(axis=1, keepdims=True)
    law: ProbArray = steps[0]
    return law


def allot(ends: ProbArray, worth: Sequence[float], rows: int) -> IntArray:
    """How many prompt tokens to put behind each place, so that the next step is worth most.

    The paper removes, from as many as there can be, the one that costs least, again and again.
    That is the same where every further prompt token at a place is worth less than the one before;
    here the optimum is found in any case.

    Args:
        ends: float64 `[places]`, chance that verification ends at each.
        worth: of the next step, by number of prompt tokens, 0 first.
        rows: most prompt tokens in all.
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
    """Trees of so many rows each: the likeliest candidates, then prompt tokens.

    Args:
        accuracies: float64 `[m, rank]`, chance that the token behind m - 1 accepted candidates is
            the one that prompt token m ranks there.
        candidates: most candidates of a state, at most `rows`.
        rows: candidates and prompt tokens together.
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


def best_tree(
    accuracies: ProbArray, most: int, costs: CostModel | None = None, context: int = 0
) -> SparseTree:
    """The trees that commit most tokens per second, or per step where costs are not known.

    Args:
        accuracies: as for `sparse_tree`.
        most: rows of a tree, at most.
        costs: what forwards cost; then smaller trees are considered too, such as fill a forward of
            a size that was measured, and none.
        context: tokens before the draft.
    """
    sizes = {most}
    if costs is not None:
        sizes |= {0} | {size - 1 for size in costs.sizes if size <= most}

    def rate(tree: SparseTree) -> float:
        return tree.tokens / (1.0 if costs is None else tree.seconds(costs, context))

    trees = (
        sparse_tree(accuracies, candidates, rows)
        for rows in sorted(sizes)
        for candidates in range(rows + 1)
    )
    return max(trees, key=rate)
