"""Typical acceptance: thresholds by hand, the deepest path, and every committed token checked."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from tests.verifiers.lossy_runs import DRAFTERS, Truth, requests, run

from paceline.core import tree as trees
from paceline.core.types import ROOT, Distribution, SamplingParams, TokenTree
from paceline.errors import InvalidOption
from paceline.methods.typical import Typical
from paceline.proof.oracle import ScriptedRandomness
from paceline.proof.tabular import TabularDistributions


def typical(probs: list[float], token: int, epsilon: float, delta: float) -> bool:
    """The stated predicate, written out."""
    entropy = -sum(p * math.log(p + 1e-5) for p in probs)
    return probs[token] > min(epsilon, delta * math.exp(-entropy))


@pytest.mark.parametrize("drafter", DRAFTERS)
@settings(max_examples=12)
@given(params=requests())
def test_every_committed_token_is_typical_or_the_most_probable(
    drafter: str, params: SamplingParams
) -> None:
    truth = Truth.of(params)
    for step in run(Typical(), DRAFTERS[drafter], params):
        context = step.context
        for index, token in enumerate(step.tokens):
            distribution = truth.distribution(context)
            if index < step.drafted:
                assert typical(distribution.dense().tolist(), token, 0.09, 0.3)
            else:
                assert token == distribution.argmax()
            context = (*context, token)


def test_drafts_pass_that_are_not_most_probable() -> None:
    params = SamplingParams(temperature=1.0, max_new_tokens=40)
    truth = Truth.of(params)
    steps = run(Typical(), DRAFTERS["nearly"], params)
    assert any(
        token != truth.distribution((*step.context, *step.tokens[:index])).argmax()
        for step in steps
        for index, token in enumerate(step.tokens[: step.drafted])
    )


LAWS = {
    (0,): [0.5, 0.3, 0.2, 0.0],
    (0, 0): [0.1, 0.1, 0.1, 0.7],
    (0, 1): [0.25, 0.25, 0.25, 0.25],
    (0, 2): [0.3, 0.7, 0.0, 0.0],
}


def distribution(context: tuple[int, ...]) -> Distribution:
    return Distribution(np.array(LAWS.get(context, [0.05, 0.05, 0.05, 0.85])), None, 4)


TREE = TokenTree(np.array([0, 1, 2, 2, 1, 0]), np.array([ROOT, ROOT, ROOT, 0, 1, 2]))


@pytest.mark.parametrize(
    ("rule", "path", "token"),
    [
        (Typical(0.0, 0.3), (1, 4), 3),  # all stand: 0.3 * 0.25 beats 0.5 * 0.1 and 0.2 * 0.3
        (Typical(0.2, 9.0), (1, 4), 3),  # the third child of the root has just 0.2
        (Typical(0.27, 0.9), (1, 4), 3),  # 0.25 exceeds 0.9 exp(-ln 4), the lower bound
        (Typical(0.27, 9.0), (0,), 3),  # and not 0.27: one token, the likelier one
        (Typical(0.55, 9.0), (), 0),
        (Typical(1.0, 4.0), (), 0),
    ],
)
def test_the_deepest_path_wins_and_ties_go_to_the_likelier(
    rule: Typical, path: tuple[int, ...], token: int
) -> None:
    verdict = rule.verify(
        TREE, TabularDistributions(distribution, (0,), TREE), ScriptedRandomness()
    )
    assert (verdict.path, verdict.next_token) == (path, token)


def test_a_token_without_probability_never_stands() -> None:
    draft = trees.chain([3])
    verdict = Typical(0, 0).verify(
        draft, TabularDistributions(distribution, (0,), draft), ScriptedRandomness()
    )
    assert verdict.path == ()


@pytest.mark.parametrize("size", [2, 5, 300])
def test_the_threshold_is_between_its_two_bounds(size: int) -> None:
    rule = Typical(epsilon=0.5, delta=0.4)
    flat = Distribution(np.full(size, 1 / size), None, size)
    sure = Distribution(np.eye(size)[0], None, size)
    for factor, stands in ((0.5, False), (0.998, False), (0.9995, False), (1.01, True)):
        assert rule.stands(flat, factor * 0.4 / size) is stands
        assert rule.stands(sure, factor * 0.4) is stands
    assert Typical(epsilon=0.1, delta=0.4).stands(sure, 0.101)
    assert not Typical(epsilon=0.1, delta=0.4).stands(sure, 0.1)


@pytest.mark.parametrize("options", [(-0.1, 0.3), (0.1, -1), (math.nan, 1), (1, math.inf)])
def test_thresholds_are_checked(options: tuple[float, float]) -> None:
    with pytest.raises(InvalidOption, match="must be 0 or more"):
        Typical(*options)
