"""Every registered rule that takes drawn drafts gets drafts that it accepts."""

from __future__ import annotations

import pytest

from paceline import tree as trees
from paceline.errors import InvalidOption
from paceline.exactness.drafting import grown
from paceline.exactness.tabular import TabularLaws, TabularModel
from paceline.growth.choice import growth_for
from paceline.randomness import KeyedRandomness
from paceline.types import Budget
from paceline.verifiers.base import Verifier
from paceline.verifiers.coupled import Coupled
from paceline.verifiers.k_seq import KSeq
from paceline.verifiers.recursive import Recursive
from paceline.verifiers.recursive_distinct import RecursiveDistinct
from paceline.verifiers.rejection import Rejection
from paceline.verifiers.sample_match import SampleMatch
from paceline.verifiers.top_and_one import TopAndOne

MODEL, OTHER = TabularModel(5, 2, 1), TabularModel(5, 2, 2)


@pytest.mark.parametrize(
    ("verifier", "name"),
    [
        (Coupled(), "shared-noise"),
        (SampleMatch(), "shared-noise"),
        (Rejection(), "iid"),
        (Recursive(), "paths"),
        (KSeq(), "paths"),
        (RecursiveDistinct(), "branching"),
        (TopAndOne(), "top-and-one"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_rule_takes_what_grows(verifier: Verifier, name: str) -> None:
    growth = growth_for(verifier.accepts, verifier.shape)
    assert growth.name == name
    assert growth.kind in verifier.accepts
    for seed in range(5):
        draft = grown(growth, OTHER.law)((0,), KeyedRandomness(seed), Budget(6, 3))
        assert trees.is_chain(draft) or verifier.shape == "tree"
        verifier.verify(draft, TabularLaws(MODEL.law, (0,), draft), KeyedRandomness(seed))


def test_a_rule_for_parallel_drafts_alone_gets_none() -> None:
    with pytest.raises(InvalidOption, match="cannot draw factorised drafts"):
        growth_for(frozenset({"factorised"}), "chain")
