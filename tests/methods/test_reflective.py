"""Reflective verification: what is added to a draft, and the fused law at every committed token."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.verifiers.lossy_runs import DRAFTERS, VOCABULARY, Step, Truth, plain, requests, run, text

from paceline.core import tree as trees
from paceline.core.types import Budget, SamplingParams
from paceline.errors import InvalidOption
from paceline.methods.reflective import Reflective
from paceline.proof.cases import random_tree, sampled_chain
from paceline.sampling.randomness import Draw, KeyedRandomness, Purpose

PROMPT = (3, 4)


@pytest.mark.parametrize("prompt", [(), (5,), PROMPT])
@pytest.mark.parametrize("nodes", range(9))
def test_prompt_and_copy_hang_on_the_deepest_path(nodes: int, prompt: tuple[int, ...]) -> None:
    draft = random_tree(VOCABULARY, nodes, seed=nodes)((0,), KeyedRandomness(0), Budget(9, 9))
    shown = Reflective(prompt=prompt).extend(draft)
    trees.validate(shown)
    if not len(draft):
        assert shown is draft
        return
    assert shown.tokens[: len(draft)].tolist() == draft.tokens.tolist()
    assert shown.parents[: len(draft)].tolist() == draft.parents.tolist()
    deepest = max(trees.leaf_paths(draft), key=lambda path: (len(path), -path[-1]))
    tokens = draft.tokens[list(deepest)].tolist()
    [added] = [path for path in trees.leaf_paths(shown) if path[-1] == len(shown) - 1]
    assert added[: len(deepest)] == deepest
    assert shown.tokens[list(added)].tolist() == [*tokens, *prompt, *tokens]
    assert added[len(deepest) :] == tuple(range(len(draft), len(shown)))


def test_the_law_of_a_drawn_draft_is_kept() -> None:
    draft = sampled_chain(Truth.of(SamplingParams(temperature=1)).distribution)(
        (0, 1), KeyedRandomness(0), Budget(3, 3)
    )
    assert Reflective(prompt=PROMPT).extend(draft).sampling is draft.sampling


def fused_own(step: Step, truth: Truth, drafted: tuple[int, ...], alpha: float) -> int:
    """The token of the fused law after some drafted tokens, from the tables alone."""
    context = (*step.context, *drafted)
    distribution = truth.distribution(context)
    scores = [math.log(p) if p else -math.inf for p in truth.soft(context).dense()]
    path = deepest_tokens(step)
    if len(step.draft) and drafted == path[: len(drafted)]:
        second = (*step.context, *path, *PROMPT, *drafted)
        look = truth.soft(second).dense()
        if any(s > -math.inf and p > 0 for s, p in zip(scores, look, strict=True)):
            scores = [
                (1 - alpha) * s + alpha * math.log(p) if p and s > -math.inf else -math.inf
                for s, p in zip(scores, look, strict=True)
            ]
    if not truth.params.greedy and len(distribution.probs) > 1:
        draw = Draw(len(context), Purpose.NOISE)
        noise = KeyedRandomness(truth.params.seed).noise(draw).of(np.arange(VOCABULARY))
        total = math.log(sum(math.exp(s) for s in scores))
        scores = [s - total - math.log(e) for s, e in zip(scores, noise, strict=True)]
    return scores.index(max(scores))


def deepest_tokens(step: Step) -> tuple[int, ...]:
    """Tokens of the path that is reflected."""
    if not len(step.draft):
        return ()
    path = max(trees.leaf_paths(step.draft), key=lambda path: (len(path), -path[-1]))
    return tuple(step.draft.tokens[list(path)].tolist())


@pytest.mark.parametrize("drafter", DRAFTERS)
@settings(max_examples=10)
@given(params=requests(), alpha=st.sampled_from([0.2, 0.5, 0.9]), nodes=st.integers(1, 16))
def test_every_committed_token_is_that_of_the_fused_law(
    drafter: str, params: SamplingParams, alpha: float, nodes: int
) -> None:
    options = {name: getattr(params, name) for name in params.__slots__}
    # Forced tokens count from the output's start, which a second look has moved away from.
    params = SamplingParams(**(options | {"forced_tokens": {}}))
    truth = Truth.of(params)
    rule = Reflective(alpha, PROMPT)
    for step in run(rule, DRAFTERS[drafter], params, budget=Budget(nodes, 5)):
        for index, token in enumerate(step.tokens):
            assert token == fused_own(step, truth, step.tokens[:index], alpha)


@settings(max_examples=10)
@given(params=requests(), alpha=st.sampled_from([0.5, 1.0]))
def test_what_the_request_forbids_or_forces_stays_so(params: SamplingParams, alpha: float) -> None:
    written = text(run(Reflective(alpha, PROMPT), DRAFTERS["tree"], params))
    for index, token in enumerate(written):
        if index in params.forced_tokens:
            assert token == params.forced_tokens[index]
        else:
            assert token not in params.banned_tokens


def test_reflection_changes_texts() -> None:
    """Negative control of the limit: a weight above 0 is not plain decoding."""
    params = SamplingParams(max_new_tokens=40)
    assert text(run(Reflective(0.6, PROMPT), DRAFTERS["nearly"], params)) != plain(params)


@pytest.mark.parametrize("alpha", [-0.1, 1.1, math.nan])
def test_the_weight_is_checked(alpha: float) -> None:
    with pytest.raises(InvalidOption, match=r"alpha must be in \[0, 1\]"):
        Reflective(alpha)


def test_scores_of_the_drafter_are_not_misread() -> None:
    draft = trees.chain([1, 2])
    assert Reflective().extend(draft).scores is None
    assert np.array_equal(Reflective().extend(draft).tokens, [1, 2, 1, 2])
