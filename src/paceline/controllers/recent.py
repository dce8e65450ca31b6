"""Recent acceptance by depth, for drafts without scores or with scores that are not trusted."""

from __future__ import annotations

import numpy as np

from paceline.types import ProbArray

# Decay per step; about 50 steps count.
_MEMORY = 0.98

# Prior acceptance probability of a drafted token, and the trials that it counts for.
_CHANCE, _BELIEF = 0.6, 3.0


class RecentReach:
    """Acceptance probabilities down to each depth; unused depths fall back to the prior."""

    def __init__(self, depth: int) -> None:
        self._stood = np.zeros(depth)
        self._tried = np.zeros(depth)

    @property
    def reach(self) -> ProbArray:
        """Return float64 `[depth]`, acceptance probability of the token at depth d + 1."""
        rates = (self._stood + _CHANCE * _BELIEF) / (self._tried + _BELIEF)
        return np.cumprod(rates).astype(np.float64, copy=False)

    def fade(self) -> None:
        self._stood *= _MEMORY
        self._tried *= _MEMORY

    def add(self, drafted: int, accepted: int) -> None:
        """Count a draft: its depth, and the length of the accepted path."""
        self._tried[: min(drafted, accepted + 1)] += 1  # below the first miss nothing was tried
        self._stood[:accepted] += 1
