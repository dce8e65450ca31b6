"""Proofs of methods for `paceline audit inside`.

Lossy verifiers are checked at the setting where each must be lossless; those that read hidden
states are not, since tables have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from paceline.core.target import Layer, Output, Rows
from paceline.core.types import Capabilities
from paceline.drafters.base import Drafter
from paceline.methods.cascade import Cascade, Level
from paceline.methods.denoised import Deer
from paceline.methods.jacobi import Jacobi
from paceline.proof.cases import Draftable, Limit, Proof, straight
from paceline.proof.table_denoiser import TableDenoiser, random_joint
from paceline.proof.tabular import LogitsOf, TabularModel, TabularTarget

# Seed of the table at the bottom of the cascade.
_THIRD = 7


def _jacobi(logits: LogitsOf, vocabulary: int) -> Drafter:
    return Jacobi(vocabulary, needs_q=True)


def _cascade(logits: LogitsOf, vocabulary: int) -> Drafter:
    # The draft model, with a third model as its drafter.
    third = TabularModel(vocabulary, 4, seed=_THIRD)
    levels = [TabularTarget(each, vocabulary) for each in (third.logits, logits)]
    return Cascade([Level(model) for model in levels], vocabulary, needs_q=True)


class _Denoiser(TableDenoiser):
    """A denoiser whose head has symbols alone; places beyond its joint may hold any."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, vocab_size=self.symbols)

    def forward(self, rows: Sequence[Rows], layers: Sequence[Layer] | None = None) -> list[Output]:
        outputs = [each.logits[:, : self.symbols] for each in super().forward(rows)]
        for logits in outputs:
            logits[np.isneginf(logits).all(axis=1)] = 0.0
        return [Output(logits) for logits in outputs]


def _deer(logits: LogitsOf, vocabulary: int) -> Drafter:
    model = _Denoiser(random_joint(vocabulary, 4, _THIRD))
    return Deer(model, vocabulary, needs_q=True)


JACOBI = Proof((Draftable("jacobi window", "factorised", "chain", straight, drafter=_jacobi),))
DEER = Proof((Draftable("deer", "iid", "chain", straight, drafter=_deer),))
CASCADE = Proof((Draftable("cascade", "iid", "chain", straight, drafter=_cascade),))
TYPICAL = Proof(limit=Limit({"epsilon": 1.0, "delta": 1e9, "greedy_next": False}))
TOP_GAP = Proof(limit=Limit({"beta": 1}))
FLY = Proof(limit=Limit({"window": 100}))
REFLECTIVE = Proof(limit=Limit({"alpha": 0.0}))
RELAXED = Proof(limit=Limit({"ratio": 1.0}, seed_exact=False))
