"""Negative controls for chains, paths, cascades and Jacobi windows: each must be caught."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.core.types import Budget, SamplingParams
from paceline.drafters.base import Drafter
from paceline.proof.cases import Propose, grown, sampled_chain
from paceline.proof.compare import joint_after_round, joint_of_steps, max_error, target_joint
from paceline.proof.negative import (
    BlockWithEarlyExit,
    JacobiWithOldRows,
    MultipathByPlainDistribution,
    ReportsLowerRows,
)
from paceline.proof.tabular import TabularModel, TabularTarget
from paceline.sampling.distributions import from_dense
from paceline.trees.drawn import Paths
from paceline.verifiers.base import Verifier
from paceline.verifiers.block import Block
from paceline.verifiers.multipath_block import MultipathBlock
from paceline.verifiers.rejection import Rejection
from paceline.zoo.cascade import Cascade, Level
from paceline.zoo.jacobi import Jacobi

P, Q = TabularModel(3, 3, 51, 1.0), TabularModel(3, 3, 52, 1.0)
VISIBLE, EXACT = 1e-3, 1e-12


def error(verifier: Verifier, propose: Propose, depth: int = 2) -> float:
    joint = joint_after_round(verifier, P.distribution, propose, (0,), depth + 1, Budget(8, depth))
    assert sum(joint.values()) == pytest.approx(1, abs=EXACT)
    return max_error(joint, target_joint(P.distribution, (0,), depth + 1))


def test_block_verification_with_an_early_exit_is_caught() -> None:
    assert not BlockWithEarlyExit.lossless
    assert error(BlockWithEarlyExit(), sampled_chain(Q.distribution)) > VISIBLE
    assert error(Block(), sampled_chain(Q.distribution)) < EXACT
    # A single token has no earlier coin to lose: there both are token rejection.
    assert error(BlockWithEarlyExit(), sampled_chain(Q.distribution), depth=1) < EXACT


def test_selecting_a_path_without_its_law_is_caught() -> None:
    assert not MultipathByPlainDistribution.lossless
    assert error(MultipathByPlainDistribution(), grown(Paths(2), Q.distribution)) > VISIBLE
    assert error(MultipathBlock(), grown(Paths(2), Q.distribution)) < EXACT
    assert error(MultipathByPlainDistribution(), grown(Paths(1), Q.distribution)) < EXACT


@pytest.mark.parametrize("rule", [Rejection(), Block()], ids=lambda rule: rule.name)
def test_a_cascade_that_reports_the_lower_level_s_rows_is_caught(rule: Verifier) -> None:
    bottom, middle, target = (TabularModel(2, 4, seed, 1.5) for seed in (11, 12, 13))
    params = SamplingParams(temperature=1, max_new_tokens=4)

    def right() -> Drafter:
        models = (TabularTarget(model.logits, 2) for model in (bottom, middle))
        return Cascade([Level(model, least=1) for model in models], 2, needs_q=True)

    def wrong() -> Drafter:
        return ReportsLowerRows(right(), bottom.distribution)

    truth = target_joint(target.distribution, (0,), 4)
    errors = [
        max_error(
            joint_of_steps(target.logits, 2, rule, make, (0,), params, Budget(8, 8), steps=1),
            truth,
        )
        for make in (right, wrong)
    ]
    assert errors[0] < EXACT
    assert errors[1] > VISIBLE


@pytest.mark.parametrize("kind", [JacobiWithOldRows, Jacobi], ids=lambda kind: kind.name)
def test_jacobi_windows_under_their_old_rows_are_caught(kind: type[Jacobi]) -> None:
    """The window is redrawn from new rows; a rule that divides by the old ones is biased."""
    model, row = TabularModel(2, 4, 5, 1.5), from_dense(np.array([0.5, 0.5]))
    params = SamplingParams(temperature=1, max_new_tokens=4)

    def drafter() -> Jacobi:
        return kind(2, needs_q=True, initial=lambda sequence, position: row)

    joint = joint_of_steps(model.logits, 2, Rejection(), drafter, (0,), params, Budget(3, 3))
    worst = max_error(joint, target_joint(model.distribution, (0,), 4))
    assert worst > VISIBLE if kind is JacobiWithOldRows else worst < EXACT
