"""The optimum is that of all parts of a tree, by trying every one of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.shapes.naive_parts import candidates, parts, paths

from paceline.controllers.cost import CostModel
from paceline.shapes.batch import Batch, Candidates
from paceline.shapes.frontier import Frontier
from paceline.shapes.optimum import best_shape, optimum
from paceline.shapes.static import chances, from_rank_accuracies, layout
from paceline.types import ProbArray

free = st.just(0.0)
prices = st.sampled_from([0.0, 0.01, 0.1, 0.5])
forks = st.sampled_from([0.0, 0.0, 0.05, 0.3])
staircases = st.lists(st.sampled_from([0.0, 0.0, 0.05, 0.2, 1.0]), max_size=9).map(
    lambda steps: np.cumsum([1.0, *steps])
)


@settings(max_examples=150, deadline=None)
@given(candidates(7, free))
def test_the_frontier_holds_the_best_part_of_every_size(draft: Candidates) -> None:
    parents = draft.parents.tolist()
    best: dict[tuple[int, int], float] = {}
    for part in parts(parents):
        key = len(part), max(0, paths(parents, part) - 1)
        best[key] = max(best.get(key, -math.inf), math.fsum(draft.scores[list(part)]))
    frontier = Frontier(draft.parents, draft.scores)
    for size, extra in np.ndindex(frontier.gains.shape):
        wanted = best.pop((size, extra), -math.inf)
        assert frontier.gains[size, extra] == pytest.approx(wanted, abs=1e-12)
        if wanted > -math.inf:
            chosen = tuple(frontier.nodes(size, extra).tolist())
            assert chosen in set(parts(parents))
            assert (len(chosen), max(0, paths(parents, chosen) - 1)) == (size, extra)
            assert math.fsum(draft.scores[list(chosen)]) == pytest.approx(wanted, abs=1e-12)
    assert not best


def best_rate(drafts: list[Candidates], seconds: ProbArray, fork: float = 0.0) -> float:
    """Expected tokens per second of the best combination of parts."""
    choices = []
    for draft in drafts:
        parents = draft.parents.tolist()
        choices.append(
            [
                (
                    len(part),
                    math.fsum(draft.scores[list(part)]),
                    draft.path_seconds * max(0, paths(parents, part) - 1),
                    paths(parents, part) > 1,
                )
                for part in parts(parents)
            ]
        )
    best = 0.0
    for combination in itertools.product(*choices):
        sizes, gains, extra, forks = map(math.fsum, zip(*combination, strict=True))
        if sizes < len(seconds):
            time = seconds[int(sizes)] + extra + fork * (forks > 0)
            best = max(best, (len(drafts) + gains) / time)
    return best


@settings(max_examples=150, deadline=None)
@given(candidates(8, prices), staircases, forks)
def test_no_part_of_a_draft_is_faster(draft: Candidates, seconds: ProbArray, fork: float) -> None:
    check([draft], seconds, fork)


@settings(max_examples=120, deadline=None)
@given(st.lists(candidates(4, prices), min_size=2, max_size=3), staircases, forks)
def test_no_parts_of_a_batch_are_faster(
    drafts: list[Candidates], seconds: ProbArray, fork: float
) -> None:
    check(drafts, seconds, fork)


def check(drafts: list[Candidates], seconds: ProbArray, fork: float) -> None:
    choice = optimum(drafts, seconds, fork)
    assert choice.rate == pytest.approx(best_rate(drafts, seconds, fork), rel=1e-9)
    tokens, time = float(len(drafts)), float(seconds[sum(map(len, choice.nodes))])
    branches = 0
    for draft, nodes in zip(drafts, choice.nodes, strict=True):
        parents = draft.parents.tolist()
        part = tuple(nodes.tolist())
        assert part in set(parts(parents))
        assert nodes.dtype == np.int64
        tokens += math.fsum(draft.scores[nodes])
        time += draft.path_seconds * max(0, paths(parents, part) - 1)
        branches += paths(parents, part) > 1
    time += fork if branches else 0.0
    assert (choice.tokens, choice.seconds) == pytest.approx((tokens, time))


@settings(max_examples=120, deadline=None)
@given(
    st.lists(candidates(4, prices), min_size=1, max_size=3),
    st.integers(0, 9),
    st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    forks,
)
def test_a_priced_batch_holds_the_best_parts_of_every_size(
    drafts: list[Candidates], most: int, rate: float, fork: float
) -> None:
    """For objectives that are no ratio: tokens against the worth of time."""

    def worth(combination: Sequence[tuple[int, ...]]) -> float:
        total, branches = 0.0, 0
        for draft, part in zip(drafts, combination, strict=True):
            extra = max(0, paths(draft.parents.tolist(), part) - 1)
            total += math.fsum(draft.scores[list(part)]) - rate * draft.path_seconds * extra
            branches += extra
        return total - rate * fork * (branches > 0)

    every = [list(parts(draft.parents.tolist())) for draft in drafts]
    priced = Batch(drafts, most, fork).priced(rate)
    assert len(priced.worth) == 1 + min(most, sum(len(draft.scores) for draft in drafts))
    for size, found in enumerate(priced.worth):
        best = max(
            worth(combination)
            for combination in itertools.product(*every)
            if sum(map(len, combination)) <= size
        )
        assert found == pytest.approx(best, abs=1e-12)
        nodes = [tuple(part.tolist()) for part in priced.nodes(size)]
        assert sum(map(len, nodes)) <= size
        assert all(part in whole for part, whole in zip(nodes, every, strict=True))
        assert worth(nodes) == pytest.approx(best, abs=1e-12)


def test_padding_is_filled_and_dear_branches_are_left() -> None:
    """Three branches: how many are worth their paths falls with the price of a path."""
    costs = CostModel([1, 2, 4, 8], [1.0, 1.1, 1.2, 2.4], padded=True)
    star = np.full(3, -1, dtype=np.int64)
    scores = np.array([0.5, 0.3, 0.1])
    seconds = costs.times(1 + np.arange(4))
    for path_seconds, wanted in ((0.0, [0, 1, 2]), (0.1, [0, 1]), (0.3, [0])):
        choice = optimum([Candidates(star, scores, path_seconds)], seconds)
        assert choice.nodes[0].tolist() == wanted
    crowded = optimum([Candidates(star, scores)], seconds * np.array([1, 5, 5, 5]))
    assert (crowded.nodes[0].tolist(), crowded.tokens, crowded.rate) == ([], 1.0, 1.0)


def test_empty_drafts_count_as_roots() -> None:
    nothing = Candidates(np.zeros(0, dtype=np.int64), np.zeros(0), 0.1)
    chain = Candidates(np.array([-1, 0]), np.array([0.9, 0.8]))
    choice = optimum([nothing, chain, nothing], np.array([2.0, 2.1, 2.2]))
    assert [nodes.tolist() for nodes in choice.nodes] == [[], [0, 1], []]
    assert choice.tokens == pytest.approx(4.7)


ACCURACIES = np.array([[0.6, 0.2, 0.1], [0.5, 0.2, 0.1], [0.4, 0.2, 0.1]])


@pytest.mark.parametrize("context", [0, 100])
def test_the_best_shape_is_the_best_of_all(context: int) -> None:
    costs = CostModel([1, 2, 4, 8, 16], [1.0, 1.05, 1.15, 1.4, 2.2], padded=True, branch=0.001)
    shape = best_shape(ACCURACIES, 10, 3, costs, context)
    layout(shape)
    every = from_rank_accuracies(ACCURACIES, 10, 3)
    draft = Candidates(layout(every).parents, chances(every, ACCURACIES), 0.001 * context)
    seconds = costs.times(1 + np.arange(11))
    parents = layout(shape).parents.tolist()
    time = seconds[len(shape)] + draft.path_seconds * (paths(parents, tuple(range(len(shape)))) - 1)
    found = (1 + chances(shape, ACCURACIES).sum()) / time
    assert found == pytest.approx(best_rate([draft], seconds))


def test_paths_that_cost_make_shapes_narrow() -> None:
    costs = CostModel([1, 8], [1.0, 1.2], branch=0.001)
    wide, narrow = (best_shape(ACCURACIES, 12, 3, costs, context) for context in (0, 1000))
    assert {path[-1] for path in wide} > {0}
    assert narrow == ((0,), (0, 0), (0, 0, 0))
