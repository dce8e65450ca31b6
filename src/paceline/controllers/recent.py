"""How deep drafts have lately stood, where drafts come without estimates or none are trusted."""

from __future__ import annotations

import numpy as np

from paceline.types import ProbArray

_MEMORY = 0.98
"""Decay per step; about 50 steps count."""

_CHANCE, _BELIEF = 0.6, 3.0
"""First guess of a drafted token's acceptance, and how many trials it counts for."""


class RecentReach:
    """Chances that a draft stands down to each depth.

    All counts fade with every step, also those of depths that were not drafted. So the first guess
    comes back for a depth that was given up, and it is tried again.
    """

    def __init__(self, depth: int) -> None:
        """Know nothing of depths 1 to `depth`."""
        self._stood = np.zeros(depth)
        self._tried = np.zeros(depth)

    @property
    def reach(self) -> ProbArray:
        """float64 `[depth]`, chance that the token at depth d + 1 stands; never rising."""
        rates = (self._stood + _CHANCE * _BELIEF) / (self._tried + _BELIEF)
        return np.cumprod(rates).astype(np.float64, copy=False)

    def fade(self) -> None:
        """A step is over."""
        self._stood *= _MEMORY
        self._tried *= _MEMORY

    def add(self, drafted: int, accepted: int) -> None:
        """Count a draft: its depth, and the length of the path that stood."""
        self._tried[: min(drafted, accepted + 1)] += 1  # below the first miss nothing was tried
        self._stood[:accepted] += 1
