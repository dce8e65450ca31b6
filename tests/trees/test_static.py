"""A static shape is filled by the ranks of the laws."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.core import tree as trees
from paceline.core.types import Budget, Distribution, TokenTree
from paceline.proof.cases import grown
from paceline.proof.tabular import TabularModel
from paceline.sampling.randomness import KeyedRandomness
from paceline.trees.deterministic import Static
from paceline.trees.shapes import MEDUSA, TOKEN_RECYCLING, StaticShape

MODEL = TabularModel(12, 4, seed=3, sharpness=1.0)
FULL = Budget(99, 9)


def drafted(shape: StaticShape, budget: Budget = FULL, model: TabularModel = MODEL) -> TokenTree:
    return grown(Static(shape), model.distribution)((0,), KeyedRandomness(0), budget)


def tokens_of(path: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens that a rank path leads along."""
    tokens: tuple[int, ...] = ()
    for rank in path:
        tokens += (int(np.argsort(-MODEL.distribution((0, *tokens)).probs, kind="stable")[rank]),)
    return tokens


@pytest.mark.parametrize("shape", [MEDUSA, TOKEN_RECYCLING], ids=["medusa", "token-recycling"])
@pytest.mark.parametrize("budget", [FULL, Budget(20, 9), Budget(99, 2), Budget(7, 3)])
def test_the_draft_has_the_shape(shape: StaticShape, budget: Budget) -> None:
    draft = drafted(shape, budget)
    trees.validate(draft)
    found = {
        tuple(draft.tokens[list(trees.path_to(draft, node))].tolist()) for node in range(len(draft))
    }
    head = [path for path in shape if len(path) <= budget.depth][: budget.nodes]
    assert found == {tokens_of(path) for path in head}
    assert len(draft) == len(head)


def test_scores_are_products_of_draft_probabilities() -> None:
    draft = drafted(((0,), (1,), (1, 2)))
    first, second = tokens_of((0,)), tokens_of((1, 2))
    row = MODEL.distribution((0,))
    assert draft.scores == pytest.approx(
        [
            row.prob(first[0]),
            row.prob(second[0]),
            row.prob(second[0]) * MODEL.distribution((0, second[0])).prob(second[1]),
        ]
    )


def test_ranks_that_the_law_lacks_stay_empty_with_all_below_them() -> None:
    two = Distribution(np.array([0.7, 0.3]), np.array([4, 9]), 12)
    shape = ((0,), (2,), (2, 0), (1,), (1, 1))
    draft = grown(Static(shape), lambda context: two)((0,), KeyedRandomness(0), FULL)
    assert draft.tokens.tolist() == [4, 9, 9]
    assert draft.parents.tolist() == [-1, -1, 1]


def test_an_empty_shape_drafts_nothing() -> None:
    assert len(drafted(())) == 0
    assert len(drafted(MEDUSA, Budget(0, 0))) == 0


@pytest.mark.parametrize(
    ("shape", "chain"), [(((0,), (0, 0)), True), (((0,), (1,)), False), (((1,),), True)]
)
def test_it_knows_whether_it_branches(shape: StaticShape, chain: bool) -> None:
    assert Static(shape).chain == chain
    assert trees.is_chain(drafted(shape)) == chain
