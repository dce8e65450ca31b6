"""All parts of a small tree, by trying every subset; and random trees with scores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from paceline.core.types import ROOT, IntArray, ProbArray


class Candidates(NamedTuple):
    """A tree with scores.

    Attributes:
        parents: int64 `[n]`.
        scores: float64 `[n]`, falling along paths.
        path_seconds: cost of a path.
    """

    parents: IntArray
    scores: ProbArray
    path_seconds: float


def parts(parents: list[int]) -> Iterator[tuple[int, ...]]:
    """Every set of nodes that holds the parents of its nodes, the empty one included."""
    for subset in range(1 << len(parents)):
        nodes = tuple(node for node in range(len(parents)) if subset >> node & 1)
        if all(parents[node] in (ROOT, *nodes) for node in nodes):
            yield nodes


def paths(parents: list[int], nodes: tuple[int, ...]) -> int:
    """How many root-to-leaf paths a part has."""
    return sum(all(parents[other] != node for other in nodes) for node in nodes)


@st.composite
def candidates(draw: st.DrawFn, most: int, path_seconds: st.SearchStrategy[float]) -> Candidates:
    """A random tree of up to `most` nodes; scores fall along paths, and some are equal."""
    parents: list[int] = []
    scores: list[float] = []
    for node in range(draw(st.integers(0, most))):
        parents.append(draw(st.integers(ROOT, node - 1)))
        share = draw(st.sampled_from([1.0, 0.8, 0.5, 0.3, 0.05]) | st.floats(0.01, 1.0))
        scores.append(share * (1.0 if parents[-1] == ROOT else scores[parents[-1]]))
    return Candidates(
        np.array(parents, dtype=np.int64), np.array(scores, dtype=np.float64), draw(path_seconds)
    )
