"""How often a kind of guess came true: decayed counts with a prior."""

from __future__ import annotations

import numpy as np

from paceline.types import ProbArray

_MEMORY = 0.995
"""Decay per observation of a cell; a cell remembers about 200 trials."""


class HitRates:
    """A table of hit rates, one cell per kind of guess."""

    def __init__(self, prior: ProbArray, weight: float = 4.0) -> None:
        """Start from `prior`, float64 of any shape, believed as much as `weight` trials."""
        self._hits = prior * weight
        self._trials = np.full(prior.shape, weight)

    def add(self, cell: tuple[int, ...], hit: bool) -> None:
        """Count one trial of a cell."""
        self._trials[cell] = _MEMORY * self._trials[cell] + 1
        self._hits[cell] = _MEMORY * self._hits[cell] + hit

    @property
    def rates(self) -> ProbArray:
        """float64, hit rate of every cell."""
        result: ProbArray = self._hits / self._trials
        return result
