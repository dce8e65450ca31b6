"""Shapes from rank accuracies are the best of their size, by trying all."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trees.naive_parts import parts

from paceline.core.types import ROOT, ProbArray
from paceline.trees.shapes import (
    FALCON,
    MEDUSA,
    TOKEN_RECYCLING,
    RankPath,
    chances,
    from_rank_accuracies,
    layout,
)

tables = (
    st.integers(1, 3)
    .flatmap(
        lambda ranks: st.lists(
            st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.33]), min_size=ranks, max_size=ranks),
            min_size=1,
            max_size=3,
        )
    )
    .map(lambda rows: np.array(rows, dtype=np.float64))
)


def all_paths(accuracies: ProbArray, depth: int) -> list[RankPath]:
    """Every rank path of positive chance, parents first."""
    levels = range(1, 1 + min(depth, len(accuracies)))
    ranks = range(accuracies.shape[1])
    found = [path for level in levels for path in itertools.product(ranks, repeat=level)]
    return [path for path in found if all(accuracies[d, r] > 0 for d, r in enumerate(path))]


def expected(accuracies: ProbArray, shape: tuple[RankPath, ...]) -> float:
    """Sum over nodes of the product along the path, written out."""
    return sum(
        float(np.prod([accuracies[depth, rank] for depth, rank in enumerate(path)]))
        for path in shape
    )


@settings(max_examples=120)
@given(tables, st.integers(0, 5), st.integers(0, 3))
def test_no_shape_of_as_many_nodes_promises_more(
    accuracies: ProbArray, nodes: int, depth: int
) -> None:
    shape = from_rank_accuracies(accuracies, nodes, depth)
    layout(shape)  # parents first, no path twice
    every = all_paths(accuracies, depth)
    assert len(shape) == min(nodes, len(every))
    assert all(len(path) <= depth for path in shape)
    likely = every if len(every) <= 12 else every[:12]
    parents = layout(tuple(likely)).parents.tolist()
    best = max(
        expected(accuracies, tuple(likely[node] for node in part))
        for part in parts(parents)
        if len(part) <= nodes
    )
    found = expected(accuracies, shape)
    assert found >= best - 1e-12
    if len(every) <= 12:
        assert found == pytest.approx(best)


@settings(max_examples=120)
@given(tables, st.integers(1, 12))
def test_heads_are_the_best_shapes_of_their_size(accuracies: ProbArray, nodes: int) -> None:
    whole = from_rank_accuracies(accuracies, nodes, 3)
    values = chances(whole, accuracies)
    assert (np.diff(values) <= 0).all()
    assert values.sum() == pytest.approx(expected(accuracies, whole))
    for size in range(len(whole)):
        assert from_rank_accuracies(accuracies, size, 3) == whole[:size]


def test_ranks_need_not_fall_in_accuracy() -> None:
    accuracies = np.array([[0.1, 0.6], [0.9, 0.0]])
    assert from_rank_accuracies(accuracies, 3, 2) == ((1,), (1, 0), (0,))


def test_chances_beyond_the_table_are_zero() -> None:
    shape = ((0,), (3,), (0, 0))
    assert chances(shape, np.array([[0.5, 0.1]])).tolist() == [0.5, 0.0, 0.0]


@pytest.mark.parametrize("shape", [((0, 1),), ((0,), (0,)), ((),), ((0, 0), (0,))], ids=str)
def test_what_is_no_shape_is_refused(shape: tuple[RankPath, ...]) -> None:
    with pytest.raises(ValueError, match="no new child of a path before it"):
        layout(shape)


def test_a_shape_as_arrays() -> None:
    found = layout(((1,), (0,), (1, 2), (0, 0), (1, 2, 3)))
    assert found.parents.tolist() == [ROOT, ROOT, 0, 1, 2]
    assert found.ranks.tolist() == [1, 0, 2, 0, 3]
    assert found.depths.tolist() == [1, 1, 2, 2, 3]


@pytest.mark.parametrize(
    ("shape", "ranks", "depths"),
    [
        (MEDUSA, 10, [10, 28, 23, 2]),
        (TOKEN_RECYCLING, 8, [8, 21, 25, 15, 8, 3]),
        (FALCON, 20, [20, 19, 21, 15]),
    ],
    ids=["medusa", "token-recycling", "falcon"],
)
def test_published_shapes(shape: tuple[RankPath, ...], ranks: int, depths: list[int]) -> None:
    found = layout(shape)
    assert np.bincount(found.depths)[1:].tolist() == depths
    assert len(shape) == sum(depths)
    assert found.ranks.max() == ranks - 1
    # A sibling of better rank is never left out, as the ranks are by likelihood.
    for path in shape:
        assert path[-1] == 0 or (*path[:-1], path[-1] - 1) in shape


def test_the_medusa_tree_is_in_order_of_likelihood() -> None:
    """Its sibling of better rank and its parent always come before a node."""
    for index, path in enumerate(MEDUSA):
        assert path[:-1] in ((), *MEDUSA[:index])
        assert path[-1] == 0 or (*path[:-1], path[-1] - 1) in MEDUSA[:index]
    assert MEDUSA[:6] == ((0,), (0, 0), (1,), (0, 1), (2,), (0, 0, 0))
