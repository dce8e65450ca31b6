"""Top-beta with a gap: every committed token is the target's own or near the top of its scores."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.verifiers.lossy_runs import DRAFTERS, Truth, relaxed, requests, run

from paceline.core import tree as trees
from paceline.core.types import ROOT, Distribution, SamplingParams, TokenTree
from paceline.errors import InvalidOption
from paceline.methods.top_gap import TopGap
from paceline.proof.oracle import ScriptedRandomness
from paceline.proof.tabular import TabularDistributions
from paceline.sampling.distributions import one_hot


@pytest.mark.parametrize("drafter", DRAFTERS)
@settings(max_examples=12)
@given(params=requests(), beta=st.integers(1, 6), gap=st.sampled_from([0.0, 0.4, 1.5, 3.0]))
def test_every_committed_token_satisfies_the_rule(
    drafter: str, params: SamplingParams, beta: int, gap: float
) -> None:
    truth = Truth.of(params)

    def near_top(context: tuple[int, ...], token: int) -> bool:
        scores = truth.scores(context)
        rank = sorted(range(len(scores)), key=lambda t: (-scores[t], t)).index(token)
        return rank < beta and max(scores) - scores[token] <= gap + 1e-9

    relaxed(run(TopGap(beta, gap), DRAFTERS[drafter], params), truth, near_top)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_defaults_pardon_something_and_the_check_sees_what_is_too_far(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, max_new_tokens=60)
    truth = Truth.of(params)
    steps = run(TopGap(), DRAFTERS["nearly"], params)
    assert relaxed(steps, truth, lambda context, token: True) > 5
    with pytest.raises(AssertionError):  # negative control
        relaxed(steps, truth, lambda context, token: False)


def soft(context: tuple[int, ...]) -> Distribution:
    return Distribution(np.array([0.5, 0.25, 0.125, 0.125]), None, 4)


def certain(context: tuple[int, ...]) -> Distribution:
    return one_hot(0, 4)


@pytest.mark.parametrize(
    ("beta", "gap", "accepted"),
    [
        (2, 0.7, {1}),
        (2, 0.69, set()),  # ln 2 is further
        (3, 9.0, {1, 2}),  # of equals the lower id is the better
        (4, 9.0, {1, 2, 3}),
        (4, 1.4, {1, 2, 3}),
        (4, 1.3, {1}),
    ],
)
def test_rank_and_gap_by_hand(beta: int, gap: float, accepted: set[int]) -> None:
    for token in (1, 2, 3):
        draft = trees.chain([token])
        distributions = TabularDistributions(certain, (0,), draft, soft)
        verdict = TopGap(beta, gap).verify(draft, distributions, ScriptedRandomness())
        assert (verdict.path == (0,)) == (token in accepted)
        assert verdict.next_token == 0


def test_of_several_the_most_probable_is_followed_and_the_own_token_before_all() -> None:
    for tokens, expected in (([3, 2, 1], 2), ([2, 3], 0), ([1, 0], 1)):
        draft = TokenTree(np.array(tokens), np.full(len(tokens), ROOT))
        distributions = TabularDistributions(certain, (0,), draft, soft)
        assert TopGap(9, 9).verify(draft, distributions, ScriptedRandomness()).path == (expected,)


@pytest.mark.parametrize("options", [(0, 1.0), (-1, 1.0), (1, -0.5), (1, math.nan)])
def test_parameters_are_checked(options: tuple[int, float]) -> None:
    with pytest.raises(InvalidOption, match="or more"):
        TopGap(*options)
