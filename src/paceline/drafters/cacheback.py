"""Cacheback (Ma et al. 2025, arXiv:2511.21699): trees from a cache of recent n-grams.

The last two tokens, and for other cases the last one, lead to the runs of tokens that followed
them when they were last seen. The runs hang under the root, the latest first, and where one ends
the cache is asked again. Text is bursty: what was said lately is said again.

The paper leaves lengths and sizes open; those here were measured. Its second, frozen table of
common n-grams is left out: this table outlives its sequences, so it fills by itself.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import ClassVar

import numpy as np

from paceline.drafters.best_first import Guess
from paceline.drafters.follower_model import FollowerModel
from paceline.drafters.guesser import Guesser
from paceline.sequence import Sequence
from paceline.target import Output
from paceline.types import Budget, TokenTree, Verdict

LEADER = 2
"""Tokens of the longest leader."""

FOLLOWER = 3
"""Tokens of a follower."""

CAPACITY = 1 << 16
"""Leaders kept."""

WIDTH = 8
"""Followers kept per leader."""

# Start values of hit rates, as measured on greedy texts of the default model: the latest follower
# of the longer leader is the best guide, and a run that held tends to go on.
_FIRST = np.array([[0.24], [0.65]]) * np.array([[0.62], [0.45]]) ** np.arange(WIDTH)
_PRIOR = 1 - (1 - _FIRST)[:, :, None] * 0.57 ** np.arange(FOLLOWER)


class Cacheback(Guesser[FollowerModel]):
    """Recent n-grams of all sequences; needs no logits."""

    name: ClassVar[str] = "cacheback"

    def reset(self) -> None:
        """Forget all n-grams and hit rates."""
        self._model = FollowerModel(LEADER, FOLLOWER, CAPACITY, WIDTH, _PRIOR)

    def open(self, sequence: Sequence) -> None:
        """Read the prompt."""
        self._model.read(sequence.tokens, 0)

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
        """Read the committed tokens, and score the guesses against them."""
        for sequence in sequences:
            begin, _ = self._settle(sequence)
            self._model.read(sequence.tokens, begin)

    def _guess(self, sequence: Sequence, budget: Budget) -> Guess:
        model = self._model
        return Guess.grow(model.place(sequence.tokens), budget, model.offers, model.follow)
