"""Proofs of zoo methods for `paceline audit inside`.

Lossy verifiers are checked at the setting where each must be lossless; those that read hidden
states are not, since tables have none.
"""

from __future__ import annotations

from typing import cast

from paceline.core.target import BlockTarget
from paceline.drafters.base import Drafter
from paceline.proof.cases import Draftable, Limit, Proof, straight
from paceline.proof.table_denoiser import TableDenoiser, random_joint
from paceline.proof.tabular import LogitsOf, TabularModel, TabularTarget
from paceline.zoo.cascade import Cascade, Level
from paceline.zoo.denoised import Deer
from paceline.zoo.jacobi import Jacobi

# Seed of the table at the bottom of the cascade.
_THIRD = 7


def _jacobi(logits: LogitsOf, vocabulary: int) -> Drafter:
    return Jacobi(vocabulary, needs_q=True)


def _cascade(logits: LogitsOf, vocabulary: int) -> Drafter:
    # The draft model, with a third model as its drafter.
    third = TabularModel(vocabulary, 4, seed=_THIRD)
    levels = [TabularTarget(each, vocabulary) for each in (third.logits, logits)]
    return Cascade([Level(model) for model in levels], vocabulary, needs_q=True)


def _deer(logits: LogitsOf, vocabulary: int) -> Drafter:
    # A denoiser of its own, with the same tokens: two symbols, or as many as fit.
    joint = random_joint(max(1, vocabulary - 2), 4, _THIRD)
    return Deer(cast(BlockTarget, TableDenoiser(joint)), vocabulary, needs_q=True)


JACOBI = Proof((Draftable("jacobi window", "factorised", "chain", straight, drafter=_jacobi),))
DEER = Proof((Draftable("deer", "iid", "chain", straight, drafter=_deer),))
CASCADE = Proof((Draftable("cascade", "iid", "chain", straight, drafter=_cascade),))
TYPICAL = Proof(limit=Limit({"epsilon": 1.0, "delta": 1e9, "greedy_next": False}))
TOP_GAP = Proof(limit=Limit({"beta": 1}))
FLY = Proof(limit=Limit({"window": 100}))
REFLECTIVE = Proof(limit=Limit({"alpha": 0.0}))
RELAXED = Proof(limit=Limit({"ratio": 1.0}, seed_exact=False))
