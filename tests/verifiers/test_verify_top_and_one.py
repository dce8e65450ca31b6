"""Greedy draft sampling: verification accepts as much as any rule can."""

from __future__ import annotations

import numpy as np
import pytest
from tests.helpers.sampled_drafts import (
    accepted,
    best_acceptance,
    constant,
    mean_accepted,
    tree,
    verdict_of,
)

from paceline.core.types import ROOT, Budget, Distribution, DraftSampling
from paceline.errors import IncompatibleDraft
from paceline.proof.tabular import TabularModel
from paceline.sampling.distributions import from_dense
from paceline.sampling.randomness import KeyedRandomness
from paceline.trees.drawn import Iid, TopAndOne
from paceline.verifiers.recursive import Recursive
from paceline.verifiers.top_and_one import TopAndOne as OptimalTopAndOne


@pytest.mark.parametrize("drafts", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_acceptance_is_the_closed_form_and_the_optimum(seed: int, drafts: int) -> None:
    models = TabularModel(4, 3, seed, 1.2), TabularModel(4, 3, seed + 100, 1.2)
    p, q = (model.distribution((0,)) for model in models)
    argmax = np.argsort(-q.probs, kind="stable")[: drafts - 1].tolist()
    rest = q.probs.copy()
    rest[argmax] = 0
    rest /= rest.sum()
    found = accepted(
        OptimalTopAndOne(),
        TopAndOne([drafts]),
        models[0].distribution,
        models[1].distribution,
        Budget(drafts, 1),
    )
    others = sum(min(p.prob(t), rest[t]) for t in range(4) if t not in argmax)
    closed = sum(map(p.prob, argmax)) + others
    assert 1 - found.get(0, 0.0) == pytest.approx(closed, abs=1e-12)

    def inside(chosen: list[int]) -> float:
        return float(rest[chosen].sum()) if set(argmax) <= set(chosen) else 0.0

    assert closed == pytest.approx(best_acceptance(p, inside), abs=1e-12)


def test_the_most_probable_tokens_are_worth_more_than_drawn_ones_where_the_draft_is_sure() -> None:
    p, q = constant(0.6, 0.2, 0.1, 0.1), constant(0.7, 0.1, 0.1, 0.1)
    optimal = mean_accepted(OptimalTopAndOne(), TopAndOne([2]), p, q, Budget(2, 1))
    drawn = mean_accepted(Recursive(), Iid([2]), p, q, Budget(2, 1))
    assert optimal > drawn + 0.01


def test_a_correction_among_the_most_probable_goes_on_below_them() -> None:
    """The drawn token is refused, the most likely one corrects it, and its own child is tried."""
    row = from_dense(np.array([0.6, 0.4]))
    below = from_dense(np.array([0.0, 1.0]))
    draft = tree([0, 1, 1], [ROOT, ROOT, 0], DraftSampling("top_and_one", {ROOT: row, 0: below}))

    def target(context: tuple[int, ...]) -> Distribution:
        return from_dense(np.array([1.0, 0.0] if len(context) == 1 else [0.0, 1.0]))

    verdict = verdict_of(OptimalTopAndOne(), draft, target, KeyedRandomness(0))
    assert verdict.path == (0, 2)


def test_most_probable_tokens_that_leave_nothing_to_draw_from_are_refused() -> None:
    row = from_dense(np.array([0.5, 0.5, 0.0]))
    draft = tree([0, 1, 2], [ROOT] * 3, DraftSampling("top_and_one", {ROOT: row}))
    with pytest.raises(IncompatibleDraft, match="'top-and-one': the siblings of node 2 leave"):
        verdict_of(OptimalTopAndOne(), draft, constant(0.5, 0.5, 0.0), KeyedRandomness(0))
