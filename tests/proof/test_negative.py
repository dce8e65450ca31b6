"""Negative controls: enumeration must catch every wrong rule, so that its silence means much."""

from __future__ import annotations

import pytest
from tests.proof.joints import joint_after_round

from paceline.core.types import Budget, SamplingParams
from paceline.proof.cases import Propose, random_tree, sampled_chain
from paceline.proof.compare import max_error, target_joint
from paceline.proof.negative import (
    AcceptsByTargetMass,
    AlwaysAccepts,
    CorrectsFromTarget,
    MatchesOrRetries,
    ResidualNotNormalised,
    ResidualOfRawLogits,
    WrongChainRule,
    drops_unlikely,
    top_one_as_sampled,
)
from paceline.proof.tabular import TabularModel, processed
from paceline.verifiers.base import Verifier
from paceline.verifiers.rejection import Rejection

P, Q = TabularModel(3, 3, 51, 1.0), TabularModel(3, 3, 52, 1.0)
VISIBLE = 1e-3
BUDGET = Budget(8, 2)


def error(verifier: Verifier, propose: Propose) -> float:
    joint = joint_after_round(verifier, P.distribution, propose, (0,), 3, BUDGET)
    assert sum(joint.values()) == pytest.approx(1, abs=1e-12)
    return max_error(joint, target_joint(P.distribution, (0,), 3))


def test_the_shape_shared_by_wrong_rules_is_right() -> None:
    assert error(WrongChainRule(), sampled_chain(Q.distribution)) < 1e-12


@pytest.mark.parametrize(
    "verifier",
    [CorrectsFromTarget(), AlwaysAccepts(), AcceptsByTargetMass(), ResidualNotNormalised()],
    ids=lambda v: type(v).__name__,
)
def test_wrong_chain_rules_are_caught(verifier: Verifier) -> None:
    assert not verifier.lossless
    assert error(verifier, sampled_chain(Q.distribution)) > VISIBLE


def test_a_second_try_at_matching_is_caught() -> None:
    assert error(MatchesOrRetries(), random_tree(3, 4, seed=1)) > VISIBLE


def test_top_one_under_the_ratio_is_caught() -> None:
    assert error(Rejection(), top_one_as_sampled(Q.distribution)) > VISIBLE


def test_dropping_a_sampled_token_for_its_own_probability_is_caught() -> None:
    assert error(Rejection(), drops_unlikely(Q.distribution, 0.3)) > VISIBLE


def test_dropping_nothing_is_exact() -> None:
    assert error(Rejection(), drops_unlikely(Q.distribution, 0.0)) < 1e-12


def test_a_residual_of_raw_logits_is_caught() -> None:
    params, prompt = SamplingParams(temperature=0.6, top_k=2), (0,)
    distribution = processed(P.logits, params, prompt)
    truth = target_joint(distribution, prompt, 2)
    propose = sampled_chain(processed(Q.logits, params, prompt))
    raw = ResidualOfRawLogits(lambda node: P.distribution(prompt))
    wrong = joint_after_round(raw, distribution, propose, prompt, 2, Budget(1, 1))
    right = joint_after_round(Rejection(), distribution, propose, prompt, 2, Budget(1, 1))
    assert max_error(wrong, truth) > VISIBLE
    assert max_error(right, truth) < 1e-12
