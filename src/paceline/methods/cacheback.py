"""Cacheback (Ma et al. 2025, arXiv:2511.21699): draft trees from an LRU cache of recent n-grams.

The paper's second, frozen n-gram table is left out: this cache outlives its sequences.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from paceline.core.types import Budget
from paceline.drafters.candidates import CandidateDrafter
from paceline.methods.lookahead import FollowerModel
from paceline.sampling.generation import Generation, VerifiedDraft
from paceline.trees.candidates import CandidateTree

# Tokens of the longest leader.
LEADER = 2

# Tokens of a follower.
FOLLOWER = 3

# Most leaders in the cache.
CAPACITY = 1 << 16

# Most followers per leader.
WIDTH = 8

# Start values of hit rates, as measured on greedy texts of the default model: the latest follower
# of the longer leader is the best guide, and a run that held tends to go on.
_FIRST = np.array([[0.24], [0.65]]) * np.array([[0.62], [0.45]]) ** np.arange(WIDTH)
_PRIOR = 1 - (1 - _FIRST)[:, :, None] * 0.57 ** np.arange(FOLLOWER)


class Cacheback(CandidateDrafter[FollowerModel]):
    """N-gram cache over all sequences; needs no logits."""

    name: ClassVar[str] = "cacheback"
    paper = "after Cacheback, Ma et al. 2025, arXiv:2511.21699"

    def reset(self) -> None:
        self._model = FollowerModel(LEADER, FOLLOWER, CAPACITY, WIDTH, _PRIOR)

    def open(self, sequence: Generation) -> None:
        self._model.read(sequence.tokens, 0)

    def learn(self, verified: VerifiedDraft) -> None:
        begin, _ = self._settle(verified.sequence)
        self._model.read(verified.sequence.tokens, begin)

    def _guess(self, sequence: Generation, budget: Budget) -> CandidateTree:
        model = self._model
        return CandidateTree.grow(model.place(sequence.tokens), budget, model.offers, model.follow)
