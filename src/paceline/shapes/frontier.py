"""What is the most that a part of a tree can promise, for every size of the part?

A part is a set of nodes that holds the parents of its nodes. It promises the sum of its scores, and
costs by its number of nodes and, where every root-to-leaf path attends to the context on its own,
by its number of paths. Time need not be smooth in either (padding makes it a staircase), so the
whole table is wanted, and dynamic programming fills it.

Nodes are visited in depth-first order, in which a subtree is a stretch: taking a node leads to the
next one, leaving it out leads behind its subtree. A part has one path, and one more for every taken
node whose parent has a taken child before it. So the one thing to remember between nodes is whether
a child before this one was taken; behind a subtree it always was, unless siblings are concerned.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from paceline.types import ROOT, IntArray, ProbArray


class _Step(NamedTuple):
    """A node, in depth-first order.

    A state is 1 if a child before the one concerned was taken, of the same parent; else 0.

    Attributes:
        node: index in the tree.
        eldest: whether it is its parent's first child, so that its state is always 0.
        taken: place and state after taking it.
        left: place after leaving it out.
        sibling: whether that place is its next sibling's, so that the state stays as it was.
    """

    node: int
    eldest: bool
    taken: tuple[int, int]
    left: int
    sibling: bool


class Frontier:
    """The best sums of scores of a tree's parts.

    Attributes:
        gains: float64 `[n + 1, m]`, by number of nodes and number of paths beyond the first, the
            largest sum of scores of such a part; minus infinity where there is none. `m` is the
            number of leaves of the tree, at least 1.
    """

    def __init__(self, parents: IntArray, scores: ProbArray) -> None:
        """Fill the table.

        Args:
            parents: int64 `[n]`, as in a `TokenTree`.
            scores: float64 `[n]`, probability that each node is accepted.
        """
        above = parents.tolist()
        self._steps = _depth_first(above)
        paths = max(1, len(above) - len(set(above) - {ROOT}))
        # By state and place, the best sums of what can still be taken.
        table = np.full((2, len(above) + 1, len(above) + 1, paths), -np.inf)
        table[:, :, 0, 0] = 0.0
        self._table = first, later = list(table[0]), list(table[1])
        values = scores.tolist()
        for place in range(len(above) - 1, -1, -1):
            node, eldest, (then, state), left, sibling = self._steps[place]
            gain = self._table[state][then][:-1] + values[node]
            np.maximum(self._table[0 if sibling else 1][left][1:], gain, out=first[place][1:])
            if not eldest:  # any node taken in this state opens a path
                np.maximum(later[left][1:, 1:], gain[:, :-1], out=later[place][1:, 1:])
        self.gains: ProbArray = table[0, 0]

    def nodes(self, count: int, extra: int) -> IntArray:
        """The nodes, ascending, of the best part with `count` nodes and 1 + `extra` paths."""
        chosen: list[int] = []
        place = state = 0
        while count:
            step = self._steps[place]
            after = state if step.sibling else 1
            without = self._table[after][step.left][count, extra]
            if without >= self._table[state][place][count, extra]:
                place, state = step.left, after
                continue
            chosen.append(step.node)
            count, extra = count - 1, extra - state
            place, state = step.taken
        return np.array(sorted(chosen), dtype=np.int64)


def _depth_first(parents: list[int]) -> list[_Step]:
    """All nodes of a tree in depth-first order, siblings in node order."""
    count = len(parents)
    sizes = [1] * (count + 1)  # the last entry is the root's
    for node in range(count - 1, -1, -1):
        sizes[parents[node]] += sizes[node]
    free = [0] * (count + 1)  # where the next child of a node goes
    order = [0] * count
    for node, parent in enumerate(parents):
        order[free[parent]] = node
        free[node], free[parent] = free[parent] + 1, free[parent] + sizes[node]
    steps = []
    for place, node in enumerate(order):
        eldest = place == 0 or order[place - 1] == parents[node]
        left = place + sizes[node]
        sibling = left < count and parents[order[left]] == parents[node]
        state = 0 if sizes[node] > 1 else 1
        steps.append(_Step(node, eldest, (place + 1, state), left, sibling))
    return steps
