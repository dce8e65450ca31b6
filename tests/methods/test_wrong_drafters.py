"""Cascades and Jacobi windows that misreport their rows: each must be caught."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from tests.proof.joints import joint_of_steps

from paceline.core.types import Budget, Distribution, SamplingParams, TokenTree
from paceline.drafters.base import Drafter
from paceline.methods.cascade import Cascade, Level
from paceline.methods.jacobi import Jacobi
from paceline.proof.compare import max_error, target_joint
from paceline.proof.tabular import DistributionOf, TabularModel, TabularTarget
from paceline.sampling.distributions import from_dense
from paceline.sampling.generation import Generation
from paceline.verifiers.base import Verifier
from paceline.verifiers.block import Block
from paceline.verifiers.rejection import Rejection

VISIBLE, EXACT = 1e-3, 1e-12


class ReportsLowerRows(Drafter):
    """Drafter whose chains report another distribution, such as that of the level below."""

    name: ClassVar[str] = "reports-lower-rows"

    def __init__(self, drafter: Drafter, lower: DistributionOf) -> None:
        self._drafter = drafter
        self._lower = lower

    def open(self, sequence: Generation) -> None:
        self._drafter.open(sequence)

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        drafts = self._drafter.propose(sequences, budgets)
        return [self._misreport(s, d) for s, d in zip(sequences, drafts, strict=True)]

    def close(self, sequence: Generation) -> None:
        self._drafter.close(sequence)

    def _misreport(self, sequence: Generation, draft: TokenTree) -> TokenTree:
        if draft.sampling is None:
            return draft
        context = tuple(sequence.tokens)
        rows = {
            parent: self._lower((*context, *draft.tokens[: parent + 1].tolist()))
            for parent in draft.sampling.rows
        }
        return replace(draft, sampling=replace(draft.sampling, rows=rows))


class JacobiWithOldRows(Jacobi):
    """Redraws its window, but reports the rows of earlier draws."""

    name: ClassVar[str] = "jacobi-with-old-rows"
    _reported: dict[int, Distribution]

    def open(self, sequence: Generation) -> None:
        super().open(sequence)
        self._reported = {}

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        [sequence], [draft] = sequences, super().propose(sequences, budgets)
        if draft.sampling is None:
            return [draft]
        first = len(sequence.tokens) + 1
        rows = {
            parent: self._reported.get(first + parent, distribution)
            for parent, distribution in draft.sampling.rows.items()
        }
        self._reported = {
            first + parent: distribution for parent, distribution in draft.sampling.rows.items()
        }
        return [replace(draft, sampling=replace(draft.sampling, rows=rows))]


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
