"""What every growth keeps: budgets, rows, names of draws, and independence of its batch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core import tree as trees
from paceline.core.types import ROOT, Budget, Distribution, ProbArray, SamplingParams, TokenTree
from paceline.errors import InvalidOption
from paceline.proof.cases import grown
from paceline.proof.tabular import TabularModel, processed
from paceline.sampling.gumbel import GumbelNoise
from paceline.sampling.randomness import Draw, KeyedRandomness, Purpose
from paceline.trees.base import DistributionRequest, TreeExpansion, run_batched
from paceline.trees.deterministic import ExpandRerank, SharedNoise, Static
from paceline.trees.drawn import Branching, Iid, Paths, StochasticBeam, TopAndOne
from paceline.trees.dyspec import Dynamic, Threshold
from paceline.trees.shapes import MEDUSA

MODEL = TabularModel(5, 3, seed=7, sharpness=1.5)
LAWS = {
    "dense": MODEL.distribution,
    "top-p": processed(MODEL.logits, SamplingParams(temperature=1, top_p=0.7), (0,)),
    "greedy": processed(MODEL.logits, SamplingParams(), (0,)),
}
SHALLOW = ExpandRerank(4, levels=2, floor=0.1)
GROWTHS: tuple[TreeExpansion, ...] = (
    Iid([1]),
    Iid([3, 2]),
    Paths(1),
    Paths(4),
    Branching([2]),
    Branching([3, 1, 2]),
    Branching([2, 2], noise=True),
    TopAndOne([1]),
    TopAndOne([3, 2]),
    StochasticBeam(1),
    StochasticBeam(3),
    Dynamic(),
    Threshold(0.05),
    SharedNoise([1]),
    SharedNoise([2, 3]),
    ExpandRerank(1),
    ExpandRerank(3),
    SHALLOW,
    Static(((0,), (0, 0), (0, 0, 0), (0, 0, 0, 0))),
    Static(MEDUSA),
)
any_growth = pytest.mark.parametrize("growth", GROWTHS, ids=lambda g: g.name)
budgets = st.builds(Budget, st.integers(0, 12), st.integers(0, 4))


class Recorded(KeyedRandomness):
    """Notes the names of all draws."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.names: list[Draw] = []

    def choice(self, weights: ProbArray, draw: Draw) -> int:
        self.names.append(draw)
        return super().choice(weights, draw)

    def uniform(self, size: int, draw: Draw) -> ProbArray:
        if draw not in self.names:  # `choice` asks for the number that it was given the name of
            self.names.append(draw)
        return super().uniform(size, draw)

    def noise(self, draw: Draw) -> GumbelNoise:
        if draw not in self.names:  # the same for all nodes of a level
            self.names.append(draw)
        return super().noise(draw)


@any_growth
@settings(max_examples=25)
@given(budgets, st.sampled_from(sorted(LAWS)), st.integers(0, 999))
def test_a_draft_is_a_tree_within_its_budget(
    growth: TreeExpansion, budget: Budget, distribution: str, seed: int
) -> None:
    draft = grown(growth, LAWS[distribution])((0, 1), KeyedRandomness(seed), budget)
    trees.validate(draft)
    assert len(draft) <= budget.nodes
    assert trees.depths(draft).max(initial=0) <= budget.depth
    assert draft.tokens.dtype == draft.parents.dtype == np.dtype(np.int64)
    assert (len(draft) > 0) == (budget.nodes > 0 and budget.depth > 0)
    for nodes in trees.children(draft).values():
        assert len(set(draft.tokens[nodes].tolist())) == len(nodes)


@any_growth
@settings(max_examples=25)
@given(budgets, st.sampled_from(sorted(LAWS)), st.integers(0, 999))
def test_the_law_reports_the_row_of_every_parent(
    growth: TreeExpansion, budget: Budget, distribution: str, seed: int
) -> None:
    draft = grown(growth, LAWS[distribution])((0, 1), KeyedRandomness(seed), budget)
    if growth.kind is None or not len(draft):
        assert draft.sampling is None
        return
    assert draft.sampling is not None
    assert draft.sampling.kind == growth.kind
    assert set(draft.sampling.rows) == set(draft.parents.tolist())
    for parent, nodes in trees.children(draft).items():
        path = draft.tokens[list(trees.path_to(draft, parent))].tolist()
        wanted = LAWS[distribution]((0, 1, *path))
        np.testing.assert_array_equal(draft.sampling.rows[parent].dense(), wanted.dense())
        assert all(wanted.prob(int(draft.tokens[node])) > 0 for node in nodes)


@any_growth
@settings(max_examples=25)
@given(budgets, st.sampled_from(sorted(LAWS)), st.integers(0, 999))
def test_no_two_draws_share_a_name(
    growth: TreeExpansion, budget: Budget, distribution: str, seed: int
) -> None:
    randomness = Recorded(seed)
    draft = grown(growth, LAWS[distribution])((0, 1, 4), randomness, budget)
    names = randomness.names
    assert len(set(names)) == len(names)
    deepest = 3 + trees.depths(draft).max(initial=0) - 1
    for name in names:
        assert 3 <= name.position <= max(deepest, 3)
        if growth.kind is None:
            assert (name.purpose, name.root) == (Purpose.NOISE, 0)
        else:
            assert (name.purpose, name.root) == (Purpose.DRAFT, 2)


@any_growth
def test_the_same_seed_grows_the_same_draft_alone_or_in_step_with_others(
    growth: TreeExpansion,
) -> None:
    contexts: list[tuple[int, ...]] = [(0,), (0, 3), (0, 2, 2)]
    sizes = [Budget(7, 3), Budget(2, 1), Budget(9, 4)]

    def answer(asks: Mapping[int, DistributionRequest]) -> dict[int, list[Distribution]]:
        return {
            index: [
                MODEL.distribution(
                    (*contexts[index], *tree.tokens[list(trees.path_to(tree, n))].tolist())
                )
                for n in nodes
            ]
            for index, (tree, nodes) in asks.items()
        }

    together = run_batched(
        [
            growth.grow(size, KeyedRandomness(4), len(context))
            for size, context in zip(sizes, contexts, strict=True)
        ],
        answer,
    )
    for size, context, found in zip(sizes, contexts, together, strict=True):
        alone = grown(growth, MODEL.distribution)(context, KeyedRandomness(4), size)
        assert found.tokens.tolist() == alone.tokens.tolist()
        assert found.parents.tolist() == alone.parents.tolist()


@any_growth
def test_questions_are_leaves_of_a_growing_tree_and_never_repeat(growth: TreeExpansion) -> None:
    asked: dict[int, tuple[int, ...]] = {}
    before: list[int] = []

    def path(tree: TokenTree, node: int) -> tuple[int, ...]:
        return tuple(tree.tokens[list(trees.path_to(tree, node))].tolist())

    def answer(asks: Mapping[int, DistributionRequest]) -> dict[int, list[Distribution]]:
        (tree, nodes) = asks[0]
        tokens = tree.tokens.tolist()
        assert tree.sampling is None
        assert tokens[: len(before)] == before
        before[:] = tokens
        inner = set(tree.parents.tolist())
        for node in nodes:
            assert node not in asked
            assert node not in inner
            asked[node] = path(tree, node)
        return {0: [MODEL.distribution((0, *asked[node])) for node in nodes]}

    [draft] = run_batched([growth.grow(Budget(12, 4), KeyedRandomness(1), 1)], answer)
    assert {path(draft, parent) for parent in draft.parents.tolist()} <= set(asked.values())
    assert ROOT in asked


@any_growth
def test_a_one_hot_law_grows_the_greedy_chain(growth: TreeExpansion) -> None:
    """At temperature 0 there is nothing to choose, and no node is spent on what cannot be."""
    distribution = LAWS["greedy"]
    draft = grown(growth, distribution)((0,), KeyedRandomness(0), Budget(64, 4))
    tokens: list[int] = []
    for _ in range(2 if growth is SHALLOW else 4):
        tokens.append(distribution((0, *tokens)).argmax())
    assert draft.tokens.tolist() == tokens
    assert trees.is_chain(draft)


@pytest.mark.parametrize("growth", [Iid([1]), TopAndOne([1]), Branching([1])], ids=lambda g: g.name)
@pytest.mark.parametrize("seed", range(5))
def test_one_child_per_node_is_the_same_chain_however_it_is_called(
    growth: TreeExpansion, seed: int
) -> None:
    def chain(growth: TreeExpansion) -> TokenTree:
        return grown(growth, MODEL.distribution)((0,), KeyedRandomness(seed), Budget(4, 4))

    assert chain(growth).tokens.tolist() == chain(Paths(1)).tokens.tolist()
    assert trees.is_chain(chain(growth))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Iid([]), "growth 'iid' needs branching factors of 1 or more, not \\[\\]"),
        (lambda: Branching([2, 0]), "growth 'branching' .* not \\[2, 0\\]"),
        (lambda: Paths(0), "growth 'paths' needs 1 or more paths, not 0"),
        (lambda: StochasticBeam(0), "growth 'stochastic-beam' needs a width of 1 or more, not 0"),
        (lambda: Threshold(0.0), "growth 'threshold' needs a threshold in \\(0, 1\\], not 0.0"),
        (lambda: Threshold(1.5), "not 1.5"),
        (lambda: ExpandRerank(0), "growth 'expand-rerank' .* not 0, None and 0.0"),
        (lambda: ExpandRerank(2, 0), "not 2, 0 and"),
        (lambda: ExpandRerank(2, None, 1.0), "not 2, None and 1.0"),
        (lambda: ExpandRerank(2, floor=float("nan")), "and nan"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(make: object, says: str) -> None:
    assert callable(make)
    with pytest.raises(InvalidOption, match=says):
        make()
