"""Deterministic trees of a real draft model, and rank accuracies measured on the real model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
from tests.real.prompts import PROMPTS

from paceline.core.target import Target
from paceline.core.types import Budget, TokenTree
from paceline.drafters.draft_model import DraftModel
from paceline.drafters.recycling import Recycling
from paceline.drafters.resources import Loaded
from paceline.registry.loading import load_model, make_engine
from paceline.sampling.generation import Generation, VerifiedDraft
from paceline.trees.base import TreeExpansion
from paceline.trees.deterministic import ExpandRerank, Static
from paceline.trees.shapes import MEDUSA, RankCounts, from_rank_accuracies

pytestmark = [pytest.mark.real, pytest.mark.parametrize("loaded", ["int8"], indirect=True)]


@cache
def small() -> Target:
    """The first layers as a draft model."""
    return load_model(precision="int8", layers=24).target


@pytest.mark.parametrize("controller", ["fixed", "cost-model"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("growth", [ExpandRerank(3), Static(MEDUSA)], ids=lambda g: g.name)
def test_scored_trees_change_no_token(
    loaded: Loaded, growth: TreeExpansion, temperature: float, controller: str
) -> None:
    """Also where a controller prunes them."""
    options = {"max_new_tokens": 16, "temperature": temperature, "seed": 3}
    plain = make_engine(loaded, drafter="none").generate(PROMPTS[:2], **options)
    engine = make_engine(loaded, drafter="recycling", controller=controller, nodes=8, depth=3)
    engine.decoder.drafter = DraftModel(small(), small().capabilities.vocab_size, growth)
    found = engine.generate(PROMPTS[:2], **options)
    assert [each.token_ids for each in found] == [each.token_ids for each in plain]
    if controller == "fixed":
        forwards = sum(each.stats.target_forwards for each in found)
        assert sum(each.stats.committed_tokens for each in found) > 1.05 * forwards


class Counting(Recycling):
    """Counts which rank of its drafts was right."""

    counts: RankCounts
    drafted: dict[int, tuple[int, TokenTree]]

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        drafts = super().propose(sequences, budgets)
        for sequence, draft in zip(sequences, drafts, strict=True):
            self.drafted[sequence.id] = len(sequence.tokens), draft
        return drafts

    def observe(self, step: Sequence[VerifiedDraft]) -> None:
        super().observe(step)
        for each in step:
            begin, draft = self.drafted.pop(each.sequence.id)
            self.counts.observe(draft, each.sequence.tokens[begin:])


def test_measured_rank_accuracies_make_a_shape(loaded: Loaded) -> None:
    engine = make_engine(loaded, drafter="recycling", controller="fixed", nodes=40, depth=3)
    drafter = engine.decoder.drafter = Counting(loaded.target.capabilities.vocab_size)
    drafter.counts, drafter.drafted = RankCounts("recycling", 3, 8), {}
    engine.generate(PROMPTS[:4], max_new_tokens=48)
    accuracies = drafter.counts.accuracies
    assert drafter.counts.trials[0, 0] > 30
    assert accuracies[0, 0] == accuracies[0].max() > 0.1
    shape = from_rank_accuracies(accuracies, 8, 3)
    assert shape[0] == (0,)
    assert len(shape) == 8
