"""Negative controls for several drafts: enumeration must catch every wrong rule and drafter."""

from __future__ import annotations

import pytest

from paceline.exactness.compare import joint_after_round, max_error, target_joint
from paceline.exactness.drafting import Propose, grown
from paceline.exactness.negative_trees import (
    ClaimsTheLikeliest,
    CorrectsUnscaled,
    ForgetsTheLikeliest,
    ForgetsToNormalise,
    KeepsRejected,
    MergesRepeats,
    SortsSiblings,
    prunes_unlikely,
)
from paceline.exactness.tabular import TabularModel
from paceline.growth.base import Growth
from paceline.growth.branching import Branching
from paceline.growth.iid import Iid
from paceline.growth.paths import Paths
from paceline.growth.top_and_one import TopAndOne
from paceline.types import Budget
from paceline.verifiers.base import Verifier
from paceline.verifiers.k_seq import KSeq
from paceline.verifiers.recursive import Recursive
from paceline.verifiers.recursive_distinct import RecursiveDistinct
from paceline.verifiers.top_and_one import TopAndOne as OptimalTopAndOne

# A residual on a single token forgives most mistakes, so the laws must leave one on several.
P, Q = TabularModel(4, 3, 55, 1.0), TabularModel(4, 3, 56, 1.0)
VISIBLE = 1e-3
EXACT = 1e-12


def error(verifier: Verifier, propose: Propose, depth: int = 1) -> float:
    joint = joint_after_round(verifier, P.law, propose, (0,), depth + 1, Budget(8, depth))
    assert sum(joint.values()) == pytest.approx(1, abs=EXACT)
    return max_error(joint, target_joint(P.law, (0,), depth + 1))


@pytest.mark.parametrize(
    ("wrong", "right", "growth"),
    [
        (ForgetsToNormalise(), Recursive(), Iid([3])),
        (ForgetsToNormalise(), Recursive(), Paths(2)),
        (KeepsRejected(), RecursiveDistinct(), Branching([2])),
        (SortsSiblings(), RecursiveDistinct(), Branching([2])),
        (MergesRepeats(), Recursive(), Iid([3])),
        (CorrectsUnscaled(), KSeq(), Iid([2])),
        (ForgetsTheLikeliest(), OptimalTopAndOne(), TopAndOne([2])),
    ],
    ids=lambda value: value.name,
)
def test_wrong_rules_are_caught_where_the_right_one_is_exact(
    wrong: Verifier, right: Verifier, growth: Growth
) -> None:
    assert not wrong.lossless
    assert error(wrong, grown(growth, Q.law)) > VISIBLE
    assert error(right, grown(growth, Q.law)) < EXACT


@pytest.mark.parametrize(
    ("verifier", "growth"),
    [(RecursiveDistinct(), Branching([2, 1])), (Recursive(), Iid([1])), (KSeq(), Iid([1]))],
    ids=lambda value: value.name,
)
def test_pruning_by_the_tokens_own_probability_is_caught(
    verifier: Verifier, growth: Growth
) -> None:
    """Also where the drafter hides that it pruned."""
    assert error(verifier, prunes_unlikely(grown(growth, Q.law), 0.3), depth=2) > VISIBLE
    assert error(verifier, prunes_unlikely(grown(growth, Q.law), 0.0), depth=2) < EXACT


def test_the_likeliest_children_under_the_ratio_are_caught() -> None:
    assert error(RecursiveDistinct(), grown(ClaimsTheLikeliest([2]), Q.law)) > VISIBLE
    assert error(RecursiveDistinct(), grown(Branching([2]), Q.law)) < EXACT
