"""Trees grown by a real draft model: the int8 weights draft for the fp32 ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
from tests.real.prompts import PROMPTS

from paceline.core.target import Target
from paceline.drafters.draft_model import DraftModel
from paceline.drafters.resources import Loaded
from paceline.engine.engine import Completion
from paceline.registry.loading import load_model, make_engine
from paceline.trees.base import TreeExpansion
from paceline.trees.deterministic import SharedNoise
from paceline.trees.drawn import Branching, Iid, Paths, StochasticBeam, TopAndOne
from paceline.trees.dyspec import Dynamic
from paceline.verifiers.base import Verifier
from paceline.verifiers.k_seq import KSeq
from paceline.verifiers.matching import Coupled
from paceline.verifiers.recursive import Recursive, RecursiveDistinct
from paceline.verifiers.rejection import Rejection
from paceline.verifiers.top_and_one import TopAndOne as OptimalTopAndOne

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.parametrize("loaded", ["fp32"], indirect=True),
]

OPTIONS = {"max_new_tokens": 20, "temperature": 1.0, "seed": 3}


@cache
def small() -> Target:
    return load_model(precision="int8").target


def drafted(loaded: Loaded, verifier: Verifier, growth: TreeExpansion) -> list[Completion]:
    """Two prompts as a batch, with drafts of eight nodes in three levels."""
    engine = make_engine(loaded, drafter="recycling", nodes=8, depth=3)
    engine.decoder.verifier = verifier
    engine.decoder.drafter = DraftModel(small(), small().capabilities.vocab_size, growth)
    return engine.generate(PROMPTS[:2], **OPTIONS)


def efficiency(completions: Sequence[Completion]) -> float:
    forwards = sum(each.stats.target_forwards for each in completions)
    return sum(each.stats.committed_tokens for each in completions) / forwards


@pytest.mark.parametrize("widths", [[1], [2, 1]], ids=str)
def test_drafts_with_shared_noise_change_no_token(loaded: Loaded, widths: list[int]) -> None:
    plain = make_engine(loaded, drafter="none").generate(PROMPTS[:2], **OPTIONS)
    found = drafted(loaded, Coupled(), SharedNoise(widths))
    assert [each.token_ids for each in found] == [each.token_ids for each in plain]
    assert efficiency(found) > 2


@pytest.mark.parametrize(
    ("verifier", "growth"),
    [
        (Rejection(), Iid([1])),
        (Recursive(), Iid([2, 1])),
        (KSeq(), Paths(2)),
        (RecursiveDistinct(), Branching([2, 1])),
        (RecursiveDistinct(), StochasticBeam(2)),
        (RecursiveDistinct(), Dynamic()),
        (OptimalTopAndOne(), TopAndOne([2, 1])),
    ],
    ids=lambda value: value.name,
)
def test_drawn_trees_are_accepted_as_deep_as_the_models_agree(
    loaded: Loaded, verifier: Verifier, growth: TreeExpansion
) -> None:
    found = drafted(loaded, verifier, growth)
    assert efficiency(found) > 1.5
    assert all(len(each.token_ids) == 20 for each in found)
