"""Drafting while confident: deterministic drafts are cut, drawn ones are set a depth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.steps import step_of
from tests.policy.environment import start

from paceline.core import tree as trees
from paceline.core.types import ROOT, Budget, DraftSampling, TokenTree, Verdict
from paceline.errors import InvalidOption
from paceline.methods.confidence import Confidence
from paceline.policy.controller import ControllerContext
from paceline.policy.cost import CostModel
from paceline.sampling.distributions import from_dense
from paceline.sampling.generation import Generation


def no_costs() -> CostModel:
    raise AssertionError("a threshold needs no measurement")


@st.composite
def scored(draw: st.DrawFn) -> TokenTree:
    """A tree with scores that fall along its paths."""
    size = draw(st.integers(0, 12))
    parents = [draw(st.integers(ROOT, node - 1)) for node in range(size)]
    scores: list[float] = []
    for parent in parents:
        above = 1.0 if parent == ROOT else scores[parent]
        scores.append(above * draw(st.sampled_from([0.2, 0.5, 0.8, 1.0])))
    tokens = np.arange(size, dtype=np.int64)
    return TokenTree(tokens, np.array(parents, np.int64), scores=np.array(scores))


def drawn(depth: int) -> TokenTree:
    """A drawn chain whose drafter thought nothing of it."""
    rows = {node: from_dense(np.array([1.0])) for node in range(ROOT, depth - 1)}
    draft = trees.chain([0] * depth, sampling=DraftSampling("iid", rows))
    return replace(draft, scores=np.full(depth, 1e-6))


def step(controller: Confidence, sequence: Generation, draft: TokenTree, accepted: int) -> None:
    [chosen] = controller.select([sequence], [draft])
    verdict = Verdict(tuple(range(min(accepted, len(chosen)))), 0)
    controller.observe(step_of([sequence], [chosen], [verdict]), 0.0, 1.0)


@settings(max_examples=80)
@given(st.lists(scored(), min_size=1, max_size=4), st.floats(0.01, 1))
def test_what_is_likely_enough_is_kept(drafts: list[TokenTree], threshold: float) -> None:
    controller = Confidence(threshold)
    kept = controller.select(start(len(drafts)), drafts)
    for draft, part in zip(drafts, kept, strict=True):
        trees.validate(part)
        assert draft.scores is not None
        wanted = [node for node, score in enumerate(draft.scores) if score >= threshold]
        assert part.tokens.tolist() == wanted  # tokens name the nodes
        for node, parent in enumerate(part.parents.tolist()):
            above = ROOT if parent == ROOT else part.tokens[parent]
            assert draft.parents[part.tokens[node]] == above


@pytest.mark.parametrize("sequences", [1, 4])
def test_prunable_drafts_are_asked_for_whole(sequences: int) -> None:
    controller = Confidence(0.5, nodes=12, depth=4)
    running = start(sequences)
    unlikely = replace(trees.chain([1, 2, 3]), scores=np.array([0.4, 0.3, 0.2]))
    for _ in range(5):
        assert controller.budgets(running) == [Budget(12, 4)] * sequences
        for sequence in running:
            step(controller, sequence, unlikely, 0)


def test_drawn_drafts_pass_whatever_they_hold() -> None:
    controller = Confidence(0.9)
    draft = drawn(4)
    [chosen] = controller.select(start(1), [draft])
    assert chosen is draft


@pytest.mark.parametrize("make", [drawn, lambda depth: trees.chain([0] * depth)])
def test_depth_follows_what_stood_where_nothing_can_be_pruned(make: object) -> None:
    assert callable(make)
    controller = Confidence(0.3, nodes=16, depth=8)
    bad, good = start(2)
    for _ in range(60):
        for sequence, accepted in ((bad, 0), (good, 8)):
            [budget] = controller.budgets([sequence])
            step(controller, sequence, make(budget.depth), accepted)
    shallow, deep = controller.budgets([bad, good])
    assert shallow == Budget(2, 1)
    assert deep == Budget(16, 8)
    for _ in range(120):  # the other way round
        for sequence, accepted in ((bad, 8), (good, 0)):
            [budget] = controller.budgets([sequence])
            step(controller, sequence, make(budget.depth), accepted)
    assert controller.budgets([bad, good]) == [deep, shallow]


def test_a_depth_given_up_is_tried_again() -> None:
    """The first token always stands and the second never: two are asked for now and then."""
    controller = Confidence(0.3, nodes=8, depth=8)
    [sequence] = start(1)
    depths = []
    for _ in range(400):
        [budget] = controller.budgets([sequence])
        depths.append(budget.depth)
        step(controller, sequence, trees.chain([0] * budget.depth), 1)
    late = np.array(depths[100:])
    assert 0.01 < float((late > 1).mean()) < 0.2
    assert late.max() == 2


def test_closed_sequences_are_forgotten() -> None:
    controller = Confidence(0.3)
    [sequence] = start(1)
    for _ in range(20):
        step(controller, sequence, drawn(2), 0)
    assert controller.budgets([sequence])[0].depth == 1
    controller.close(sequence)
    controller.close(sequence)
    assert controller.budgets([sequence]) == [Budget(16, 8)]


def test_it_is_built_from_options() -> None:
    made = Confidence.create(
        ControllerContext(no_costs, options={"threshold": "0.7", "nodes": "5"})
    )
    assert made.budgets(start(1)) == [Budget(5, 5)]
    draft = replace(trees.chain([1, 2]), scores=np.array([0.75, 0.65]))
    assert len(made.select(start(1), [draft])[0]) == 1
    for threshold in ("0", "1.5", "nan"):
        with pytest.raises(InvalidOption, match=r"threshold must be in \(0, 1\]"):
            Confidence.create(ControllerContext(no_costs, options={"threshold": threshold}))
