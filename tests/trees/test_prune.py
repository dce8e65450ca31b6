"""Pruning by confidence: what goes, what stays, and what may not be pruned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trees.naive_parts import Candidates, candidates

from paceline.core import tree as trees
from paceline.core.types import ROOT, DraftSampling, TokenTree
from paceline.sampling.distributions import from_dense
from paceline.trees.shapes import confident

ROW = from_dense(np.array([0.5, 0.5]))


@settings(max_examples=150)
@given(candidates(9, st.just(0.0)), st.floats(0, 1))
def test_a_node_stays_with_all_nodes_above_it(draft: Candidates, least: float) -> None:
    tokens = np.arange(len(draft.parents)) + 100
    tree = TokenTree(tokens, draft.parents, source="mine", scores=draft.scores)
    found = confident(tree, least)
    trees.validate(found)
    wanted = [node for node in range(len(tree)) if draft.scores[node] >= least]
    assert found.tokens.tolist() == tokens[wanted].tolist()
    assert found.scores is not None
    assert found.scores.tolist() == draft.scores[wanted].tolist()
    assert found.source == "mine"
    for node in range(len(found)):
        path = found.tokens[list(trees.path_to(found, node))].tolist()
        was = trees.path_to(tree, int(found.tokens[node]) - 100)
        assert path == tokens[list(was)].tolist()


def test_descendants_go_even_if_their_scores_are_wrong() -> None:
    """Scores may not rise along a path; if they do, no node is left hanging."""
    tree = TokenTree(np.array([1, 2]), np.array([ROOT, 0]), scores=np.array([0.1, 0.9]))
    assert len(confident(tree, 0.5)) == 0


def test_a_draft_without_scores_stays_whole() -> None:
    tree = trees.chain([1, 2])
    assert confident(tree, 0.5) is tree


@pytest.mark.parametrize("scores", [None, np.array([0.9, 0.8])], ids=["unscored", "scored"])
@pytest.mark.parametrize("least", [0.0, 0.85])
def test_drawn_drafts_are_refused_whatever_would_be_left(
    scores: np.ndarray | None, least: float
) -> None:
    drawn = trees.chain([0, 1], sampling=DraftSampling("iid", {ROOT: ROW, 0: ROW}))
    with pytest.raises(ValueError, match="sampled draft cannot be pruned by confidence"):
        confident(replace(drawn, scores=scores), least)
