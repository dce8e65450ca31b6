"""Static draft trees from rank accuracies (Medusa, Cai et al. 2024, arXiv:2401.10774).

The path (0, 2) is the third-ranked child of the first-ranked child of the root. Acceptance
probabilities multiply along a path, so taking the likeliest nodes greedily is optimal.
"""

from __future__ import annotations

import heapq
import itertools
import math
from typing import NamedTuple

import numpy as np

from paceline.types import ROOT, IntArray, ProbArray

# Ranks from a child of the root down to a node; 0 is the drafter's first choice.
RankPath = tuple[int, ...]

# Rank path of every node, parents before children, without repeats.
StaticShape = tuple[RankPath, ...]


class Layout(NamedTuple):
    """A static tree as int64 arrays, one entry per node; top nodes have the parent `ROOT`."""

    parents: IntArray
    ranks: IntArray
    depths: IntArray


def layout(shape: StaticShape) -> Layout:
    """Convert to arrays. Raises ValueError if a path is empty, repeated, or before its parent."""
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
    """Return the acceptance probability of each node, float64 `[n]`."""
    rows = accuracies.tolist()

    def accuracy(depth: int, rank: int) -> float:
        inside = depth < len(rows) and rank < len(rows[depth])
        return float(rows[depth][rank]) if inside else 0.0

    products = [math.prod(itertools.starmap(accuracy, enumerate(path))) for path in shape]
    return np.array(products, dtype=np.float64)


def from_rank_accuracies(accuracies: ProbArray, nodes: int, depth: int) -> StaticShape:
    """Return the tree of most expected accepted tokens, likeliest first; any prefix is optimal too.

    `accuracies` is float64 `[depth, rank]`: probability that the child of this rank is the
    target's token, given that its parent was accepted. Nodes of probability zero are left out.
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
