"""Cacheback: recent n-grams hang under the root, the latest of the longest leader first."""

from __future__ import annotations

import numpy as np
import pytest
from tests.helpers.steps import step_of

from paceline.core import tree as trees
from paceline.core.target import NO_STATE, Output
from paceline.core.types import Budget, SamplingParams, TokenTree, Verdict
from paceline.methods import cacheback
from paceline.methods.cacheback import Cacheback
from paceline.sampling.generation import Generation

UNREAD = Output(NO_STATE)


def start(tokens: list[int], id: int = 0) -> Generation:
    return Generation.start(id, tokens, SamplingParams())


def propose(drafter: Cacheback, tokens: list[int], nodes: int = 20) -> TokenTree:
    drafter.open(sequence := start(tokens, id=9))
    [draft] = drafter.propose([sequence], [Budget(nodes, 8)])
    drafter.close(sequence)
    return draft


def paths(draft: TokenTree) -> set[tuple[int, ...]]:
    return {tuple(draft.tokens[list(path)].tolist()) for path in trees.leaf_paths(draft)}


def test_followers_of_both_leaders_share_their_nodes() -> None:
    draft = propose(Cacheback(), [1, 2, 3, 4, 5, 20, 2, 3, 4, 6, 21, 2, 7, 8, 9, 22, 1, 2])
    found = paths(draft)
    assert any(path[:3] == (3, 4, 5) for path in found)
    assert any(path[:3] == (3, 4, 6) for path in found)
    assert any(path[:3] == (7, 8, 9) for path in found)
    assert draft.tokens[0] == 3  # of the longer leader
    assert sorted(draft.tokens[draft.parents == -1].tolist()) == [3, 7]


def test_where_a_follower_ends_the_cache_is_asked_again() -> None:
    draft = propose(Cacheback(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2])
    assert draft.tokens.tolist() == [3, 4, 5, 6, 7, 8, 9, 10]
    assert trees.is_chain(draft)


def test_the_latest_use_is_the_best_guide() -> None:
    drafter = Cacheback()
    text = [1, 2, 3, 3, 3, 1, 2, 4, 4, 4, 1, 2]
    assert propose(drafter, text, 1).tokens.tolist() == [4]
    drafter.open(sequence := start([1, 2]))
    for token in (3, 3, 3):
        drafter.propose([sequence], [Budget(0, 0)])
        sequence.tokens.append(token)
        drafter.observe(step_of([sequence], [trees.EMPTY], [Verdict((), token)], [UNREAD]))
    assert propose(drafter, [1, 2], 1).tokens.tolist() == [3]


def test_a_full_cache_forgets_the_leaders_used_longest_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cacheback, "CAPACITY", 4)
    drafter = Cacheback()
    drafter.open(start(list(range(30, 50))))
    assert len(propose(drafter, [30], 3)) == 0
    np.testing.assert_array_equal(propose(drafter, [46], 3).tokens, [47, 48, 49])
