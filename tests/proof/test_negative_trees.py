"""Negative controls for several drafts: enumeration must catch every wrong rule and drafter."""

from __future__ import annotations

import pytest
from tests.proof.joints import joint_after_round

from paceline.core.types import Budget
from paceline.proof.cases import Propose, grown
from paceline.proof.compare import max_error, target_joint
from paceline.proof.negative import (
    ClaimsTheArgmax,
    CorrectsUnscaled,
    ForgetsTheArgmax,
    ForgetsToNormalise,
    KeepsRejected,
    MergesRepeats,
    SortsSiblings,
    prunes_unlikely,
)
from paceline.proof.tabular import TabularModel
from paceline.trees.base import TreeExpansion
from paceline.trees.drawn import Branching, Iid, Paths, TopAndOne
from paceline.verifiers.base import Verifier
from paceline.verifiers.k_seq import KSeq
from paceline.verifiers.recursive import Recursive, RecursiveDistinct
from paceline.verifiers.top_and_one import TopAndOne as OptimalTopAndOne

# A residual on a single token forgives most mistakes, so the laws must leave one on several.
P, Q = TabularModel(4, 3, 55, 1.0), TabularModel(4, 3, 56, 1.0)
VISIBLE = 1e-3
EXACT = 1e-12


def error(verifier: Verifier, propose: Propose, depth: int = 1) -> float:
    joint = joint_after_round(verifier, P.distribution, propose, (0,), depth + 1, Budget(8, depth))
    assert sum(joint.values()) == pytest.approx(1, abs=EXACT)
    return max_error(joint, target_joint(P.distribution, (0,), depth + 1))


@pytest.mark.parametrize(
    ("wrong", "right", "growth"),
    [
        (ForgetsToNormalise(), Recursive(), Iid([3])),
        (ForgetsToNormalise(), Recursive(), Paths(2)),
        (KeepsRejected(), RecursiveDistinct(), Branching([2])),
        (SortsSiblings(), RecursiveDistinct(), Branching([2])),
        (MergesRepeats(), Recursive(), Iid([3])),
        (CorrectsUnscaled(), KSeq(), Iid([2])),
        (ForgetsTheArgmax(), OptimalTopAndOne(), TopAndOne([2])),
    ],
    ids=lambda value: value.name,
)
def test_wrong_rules_are_caught_where_the_right_one_is_exact(
    wrong: Verifier, right: Verifier, growth: TreeExpansion
) -> None:
    assert not wrong.lossless
    assert error(wrong, grown(growth, Q.distribution)) > VISIBLE
    assert error(right, grown(growth, Q.distribution)) < EXACT


@pytest.mark.parametrize(
    ("verifier", "growth"),
    [(RecursiveDistinct(), Branching([2, 1])), (Recursive(), Iid([1])), (KSeq(), Iid([1]))],
    ids=lambda value: value.name,
)
def test_pruning_by_the_tokens_own_probability_is_caught(
    verifier: Verifier, growth: TreeExpansion
) -> None:
    """Also where the drafter hides that it pruned."""
    assert error(verifier, prunes_unlikely(grown(growth, Q.distribution), 0.3), depth=2) > VISIBLE
    assert error(verifier, prunes_unlikely(grown(growth, Q.distribution), 0.0), depth=2) < EXACT


def test_the_most_probable_children_under_the_ratio_are_caught() -> None:
    assert error(RecursiveDistinct(), grown(ClaimsTheArgmax([2]), Q.distribution)) > VISIBLE
    assert error(RecursiveDistinct(), grown(Branching([2]), Q.distribution)) < EXACT
