"""Negative controls for chains and paths: each must be caught."""

from __future__ import annotations

import pytest
from tests.proof.joints import joint_after_round

from paceline.core.types import Budget
from paceline.proof.cases import Propose, grown, sampled_chain
from paceline.proof.compare import max_error, target_joint
from paceline.proof.negative import (
    BlockWithEarlyExit,
    MultipathByPlainDistribution,
)
from paceline.proof.tabular import TabularModel
from paceline.trees.drawn import Paths
from paceline.verifiers.base import Verifier
from paceline.verifiers.block import Block
from paceline.verifiers.multipath_block import MultipathBlock

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
