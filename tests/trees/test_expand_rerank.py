"""Expand and rerank against the paper's own procedure, written out."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trees.naive_parts import parts

from paceline.core import tree as trees
from paceline.core.types import Budget, Distribution, SamplingParams, TokenTree
from paceline.proof.cases import grown
from paceline.proof.tabular import DistributionOf, TabularModel, processed
from paceline.sampling.randomness import KeyedRandomness
from paceline.trees.base import DistributionRequest, TreeExpansion, run_batched
from paceline.trees.deterministic import ExpandRerank

MODEL = TabularModel(6, 3, seed=11, sharpness=1.2)
LAWS: dict[str, DistributionOf] = {
    "dense": MODEL.distribution,
    "top-k": processed(MODEL.logits, SamplingParams(temperature=1, top_k=2), (0,)),
    "uniform": TabularModel(6, 3, seed=11, sharpness=0.0).distribution,
}

Path = tuple[int, ...]


def published(
    distribution: DistributionOf, width: int, levels: int, floor: float, nodes: int
) -> dict[Path, float]:
    """All candidates of all levels, then the best; ties to who was stored first."""
    stored: dict[Path, float] = {}
    beam: dict[Path, float] = {(): 1.0}
    for _ in range(levels):
        level: dict[Path, float] = {}
        for path, score in beam.items():
            q = distribution((0, *path)).dense()
            for token in np.argsort(-q, kind="stable")[:width].tolist():
                if q[token] > 0:
                    level[*path, token] = score * float(q[token])
        stored |= level
        ranked = sorted(level, key=lambda path: -level[path])[:width]
        beam = {path: level[path] for path in ranked if level[path] >= floor}
    best = sorted(stored, key=lambda path: -stored[path])[:nodes]
    return {path: stored[path] for path in best}


def scored_paths(draft: TokenTree) -> dict[Path, float]:
    assert draft.scores is not None
    return {
        tuple(draft.tokens[list(trees.path_to(draft, node))].tolist()): float(draft.scores[node])
        for node in range(len(draft))
    }


@settings(max_examples=150)
@given(
    st.sampled_from(sorted(LAWS)),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.05, 0.3]),
    st.integers(1, 20),
)
def test_the_draft_is_the_published_one(
    distribution: str, width: int, levels: int, floor: float, nodes: int
) -> None:
    """Also where expansion ends early: that must change nothing."""
    growth = ExpandRerank(width, levels, floor)
    draft = grown(growth, LAWS[distribution])((0,), KeyedRandomness(0), Budget(nodes, 9))
    wanted = published(LAWS[distribution], width, levels, floor, nodes)
    assert draft.sampling is None
    assert scored_paths(draft) == pytest.approx(wanted)
    trees.validate(draft)
    for node, parent in enumerate(draft.parents.tolist()):
        assert draft.scores is not None
        assert parent < 0 or draft.scores[node] <= draft.scores[parent]


def forwards(growth: TreeExpansion, budget: Budget) -> list[int]:
    """How many laws each draft forward is asked for."""
    asked: list[int] = []

    def answer(asks: Mapping[int, DistributionRequest]) -> dict[int, list[Distribution]]:
        tree, nodes = asks[0]
        asked.append(len(nodes))
        paths = [tree.tokens[list(trees.path_to(tree, node))].tolist() for node in nodes]
        return {0: [MODEL.distribution((0, *path)) for path in paths]}

    run_batched([growth.grow(budget, KeyedRandomness(0), 1)], answer)
    return asked


def test_no_forward_is_spent_on_what_cannot_be_in_the_draft() -> None:
    assert forwards(ExpandRerank(3), Budget(1, 5)) == [1]
    assert forwards(ExpandRerank(3), Budget(100, 3)) == [1, 3, 3]
    small, large = forwards(ExpandRerank(4), Budget(6, 5)), forwards(ExpandRerank(4), Budget(99, 5))
    assert sum(small) < sum(large)
    assert len(forwards(ExpandRerank(3, levels=2), Budget(100, 5))) == 2


def test_a_floor_ends_expansion_and_not_nodes() -> None:
    free = forwards(ExpandRerank(3), Budget(30, 5))
    bound = forwards(ExpandRerank(3, floor=0.1), Budget(30, 5))
    assert sum(bound) < sum(free)
    draft = grown(ExpandRerank(3, floor=0.9), MODEL.distribution)(
        (0,), KeyedRandomness(0), Budget(30, 5)
    )
    assert (len(draft), trees.depths(draft).max()) == (3, 1)


def test_it_depends_on_no_draw() -> None:
    drafts = [
        grown(ExpandRerank(3), MODEL.distribution)((0,), KeyedRandomness(seed), Budget(9, 3))
        for seed in range(5)
    ]
    assert len({tuple(draft.tokens.tolist()) for draft in drafts}) == 1


def test_a_likely_node_that_left_the_beam_stays_in_the_draft() -> None:
    """Beam of one: the second child of the root is never expanded, and is still the third best."""
    rows = {(): [0.55, 0.45], (0,): [0.9, 0.1], (0, 0): [0.2, 0.8]}

    def distribution(context: tuple[int, ...]) -> Distribution:
        return Distribution(np.array(rows.get(context[1:], [0.5, 0.5])), None, 2)

    def paths(growth: TreeExpansion) -> set[Path]:
        return set(
            scored_paths(grown(growth, distribution)((0,), KeyedRandomness(0), Budget(4, 3)))
        )

    # Scores: 0 has .55, 1 has .45, 00 has .495, 001 has .396, below 1 all have .225.
    assert paths(ExpandRerank(2)) == {(0,), (1,), (0, 0), (0, 0, 1)}


@pytest.mark.parametrize("nodes", range(1, 7))
def test_with_a_beam_for_all_no_tree_of_as_many_nodes_promises_more(nodes: int) -> None:
    model = TabularModel(2, 3, seed=5, sharpness=1.0)
    every = published(model.distribution, 8, 3, 0.0, 14)
    paths = sorted(every, key=len)
    parents = [paths.index(path[:-1]) if len(path) > 1 else -1 for path in paths]
    best = max(
        sum(every[paths[node]] for node in part) for part in parts(parents) if len(part) == nodes
    )
    draft = grown(ExpandRerank(8), model.distribution)((0,), KeyedRandomness(0), Budget(nodes, 3))
    assert draft.scores is not None
    assert draft.scores.sum() == pytest.approx(best)
