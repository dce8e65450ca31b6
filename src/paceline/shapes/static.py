"""Shapes that are fixed before decoding, from how often each rank of a drafter is right.

A shape says which nodes a draft has by their ranks alone: the path (0, 2) is the third-ranked child
of the first-ranked child of the root. Where a child of rank r at depth d is right with the same
chance under every parent, a node is accepted with the product of the chances along its path, and
the chances of all nodes add up to the expected number of accepted tokens. They fall along paths, so
the likeliest nodes are closed under parents, and taking them one after another is optimal (Cai et
al. 2024, "Medusa", arXiv:2401.10774, on searching for the best tree).
"""

from __future__ import annotations

import heapq
import itertools
import math
from typing import NamedTuple

import numpy as np

from paceline.types import ROOT, IntArray, ProbArray

RankPath = tuple[int, ...]
"""Ranks from a child of the root down to a node; rank 0 is the drafter's first choice."""

StaticShape = tuple[RankPath, ...]
"""The rank path of every node, parents before children, no path twice."""


class Layout(NamedTuple):
    """A shape as arrays, one entry per node.

    Attributes:
        parents: int64 `[n]`, index of the parent, `ROOT` for children of the root.
        ranks: int64 `[n]`, rank among the children of the parent.
        depths: int64 `[n]`, 1 for children of the root.
    """

    parents: IntArray
    ranks: IntArray
    depths: IntArray


def layout(shape: StaticShape) -> Layout:
    """A shape as arrays.

    Raises:
        ValueError: a path is empty or stands twice, or its parent does not precede it.
    """
    places: dict[RankPath, int] = {(): ROOT}
    for node, path in enumerate(shape):
        if path in places or path[:-1] not in places:
            raise ValueError(f"rank path {path} is no new child of a path before it")
        places[path] = node
    return Layout(
        np.array([places[path[:-1]] for path in shape], dtype=np.int64),
        np.array([path[-1] for path in shape], dtype=np.int64),
        np.array([len(path) for path in shape], dtype=np.int64),
    )


def chances(shape: StaticShape, accuracies: ProbArray) -> ProbArray:
    """float64 `[n]`, chance that each node is accepted.

    Args:
        shape: the nodes.
        accuracies: as in `from_rank_accuracies`; 0 beyond its edges.
    """
    rows = accuracies.tolist()

    def accuracy(depth: int, rank: int) -> float:
        inside = depth < len(rows) and rank < len(rows[depth])
        return float(rows[depth][rank]) if inside else 0.0

    products = [math.prod(itertools.starmap(accuracy, enumerate(path))) for path in shape]
    return np.array(products, dtype=np.float64)


def from_rank_accuracies(accuracies: ProbArray, nodes: int, depth: int) -> StaticShape:
    """The shape of most expected accepted tokens, likeliest nodes first.

    Any head of it is the best shape of its size. It has fewer nodes where all others have no
    chance.

    Args:
        accuracies: float64 `[depth, rank]`, chance that the target's token is the child of this
            rank, given that its parent was accepted.
        nodes: most nodes.
        depth: greatest depth; accuracies may end before it.
    """
    levels = accuracies[: max(depth, 0)].tolist()
    serial = itertools.count()  # equal chances: the elder first
    heap: list[tuple[float, int, RankPath]] = []

    def expand(path: RankPath, chance: float) -> None:
        for rank, accuracy in enumerate(levels[len(path)] if len(path) < len(levels) else ()):
            if chance * accuracy > 0:
                heapq.heappush(heap, (-chance * accuracy, next(serial), (*path, rank)))

    expand((), 1.0)
    shape: list[RankPath] = []
    while heap and len(shape) < nodes:
        value, _, path = heapq.heappop(heap)
        shape.append(path)
        expand(path, -value)
    return tuple(shape)
