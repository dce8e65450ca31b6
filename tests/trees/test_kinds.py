"""How each growth draws: the law of what is drawn, and how the draft reports it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from paceline.core import tree as trees
from paceline.core.types import ROOT, Budget, TokenTree
from paceline.proof.cases import grown
from paceline.proof.compare import max_error
from paceline.proof.oracle import Joint, enumerate_distribution
from paceline.proof.tabular import TabularModel
from paceline.sampling.distributions import from_dense, one_hot
from paceline.sampling.gumbel import GumbelNoise
from paceline.sampling.randomness import Draw, KeyedRandomness, Purpose, Randomness
from paceline.trees.base import TreeExpansion
from paceline.trees.deterministic import SharedNoise
from paceline.trees.drawn import Branching, Iid, Paths, TopAndOne

MODEL = TabularModel(3, 2, seed=5)


def drawn_at_the_root(draft: TokenTree) -> tuple[int, ...]:
    assert draft.sampling is not None
    order = draft.sampling.draws.get(ROOT, tuple(trees.children(draft)[ROOT]))
    return tuple(draft.tokens[list(order)].tolist())


def law_of(growth: TreeExpansion, budget: Budget) -> Joint:
    return enumerate_distribution(
        lambda r: drawn_at_the_root(grown(growth, MODEL.distribution)((0,), r, budget))
    )


def test_iid_children_are_independent_and_repeats_are_told() -> None:
    q = MODEL.distribution((0,)).probs
    wanted = {
        order: float(np.prod(q[list(order)])) for order in itertools.product(range(3), repeat=3)
    }
    assert max_error(law_of(Iid([3]), Budget(3, 1)), wanted) < 1e-12


def test_a_token_drawn_twice_is_one_node_with_one_set_of_children() -> None:
    certain = one_hot(2, 3)
    draft = grown(Iid([3, 2]), lambda context: certain)((0,), KeyedRandomness(0), Budget(9, 2))
    assert draft.tokens.tolist() == [2, 2]
    assert draft.parents.tolist() == [ROOT, 0]
    assert draft.sampling is not None
    assert draft.sampling.draws == {ROOT: (0, 0, 0), 0: (1, 1)}


def test_paths_are_independent_chains() -> None:
    def tokens(randomness: Randomness) -> tuple[int, ...]:
        draft = grown(Paths(2), MODEL.distribution)((0,), randomness, Budget(4, 2))
        assert draft.sampling is not None
        return tuple(int(draft.tokens[node]) for path in draft.sampling.paths for node in path)

    wanted: Joint = {}
    for order in itertools.product(range(3), repeat=4):
        chance = 1.0
        for first, second in (order[:2], order[2:]):
            chance *= MODEL.distribution((0,)).prob(first) * MODEL.distribution((0, first)).prob(
                second
            )
        wanted[order] = chance
    assert max_error(enumerate_distribution(tokens), wanted) < 1e-12


@pytest.mark.parametrize("nodes", range(1, 9))
def test_paths_share_nodes_and_later_ones_end_when_nodes_run_out(nodes: int) -> None:
    for seed in range(20):
        draft = grown(Paths(3), MODEL.distribution)((0,), KeyedRandomness(seed), Budget(nodes, 3))
        assert draft.sampling is not None
        paths = draft.sampling.paths
        assert {node for path in paths for node in path} == set(range(len(draft)))
        for path in paths:
            assert path == trees.path_to(draft, path[-1])
        lengths = [len(path) for path in paths]
        assert lengths == sorted(lengths, reverse=True)
        assert len(paths) == min(3, nodes)


def test_branching_draws_one_after_another() -> None:
    q = MODEL.distribution((0,)).probs
    wanted = {
        (a, b): float(q[a] * q[b] / (1 - q[a])) for a, b in itertools.permutations(range(3), 2)
    }
    assert max_error(law_of(Branching([2]), Budget(2, 1)), wanted) < 1e-12


def test_top_and_one_takes_the_most_probable_and_draws_the_last() -> None:
    distribution = from_dense(np.array([0.1, 0.3, 0.2, 0.3, 0.1]))
    found = enumerate_distribution(
        lambda r: drawn_at_the_root(
            grown(TopAndOne([3]), lambda context: distribution)((0,), r, Budget(3, 1))
        )
    )
    wanted = {(1, 3, 0): 0.25, (1, 3, 2): 0.5, (1, 3, 4): 0.25}
    assert max_error(found, wanted) < 1e-12


@pytest.mark.parametrize(
    ("probs", "children"), [([0.0, 1.0, 0.0], [1]), ([1e-14, 1 - 1e-14, 0.0], [1])]
)
def test_top_and_one_leaves_something_to_draw_from(probs: list[float], children: list[int]) -> None:
    distribution = from_dense(np.array(probs))
    draft = grown(TopAndOne([3]), lambda context: distribution)(
        (0,), KeyedRandomness(3), Budget(3, 1)
    )
    assert draft.tokens.tolist() == children


def test_shared_noise_proposes_the_best_under_the_noise_of_each_position() -> None:
    draft = grown(SharedNoise([2]), MODEL.distribution)((0,), KeyedRandomness(8), Budget(6, 2))
    assert draft.sampling is None
    for parent, nodes in trees.children(draft).items():
        path = trees.path_to(draft, parent)
        q = MODEL.distribution((0, *draft.tokens[list(path)].tolist())).probs
        noise = KeyedRandomness(8).noise(Draw(1 + len(path), Purpose.NOISE)).of(np.arange(3))
        best = np.argsort(-(np.log(q) - np.log(noise)))[:2]
        assert draft.tokens[nodes].tolist() == best.tolist()


def test_shared_noise_is_that_of_a_level_and_is_not_drawn_for_a_certain_token() -> None:
    class Named(KeyedRandomness):
        def __init__(self, seed: int) -> None:
            super().__init__(seed)
            self.names: set[Draw] = set()

        def noise(self, draw: Draw) -> GumbelNoise:
            self.names.add(draw)
            return super().noise(draw)

    for distribution, levels in ((MODEL.distribution, 2), (lambda context: one_hot(1, 3), 0)):
        randomness = Named(0)
        grown(SharedNoise([2]), distribution)((0,), randomness, Budget(6, 2))
        assert len(randomness.names) == levels
