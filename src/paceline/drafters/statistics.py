"""How often a kind of guess came true: decayed counts with a prior."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.types import ProbArray

_MEMORY = 0.995
"""Decay per observation of a cell; a cell remembers about 200 trials."""


class HitRates:
    """A table of hit rates, one cell per kind of guess.

    Plain lists: single cells are read and written at every step.

    Attributes:
        table: nested lists, hit rate of every cell at the moment.
    """

    def __init__(self, prior: ProbArray, weight: float = 4.0) -> None:
        """Start from `prior`, float64 of any shape, believed as much as `weight` trials."""
        self.table: list[Any] = prior.tolist()
        self._weight = weight
        self._counts: dict[tuple[int, ...], tuple[float, float]] = {}

    def add(self, cell: tuple[int, ...], hit: bool) -> None:
        """Count one trial of a cell."""
        row = self.table
        for index in cell[:-1]:
            row = row[index]
        last = cell[-1]
        hits, trials = self._counts.get(cell) or (row[last] * self._weight, self._weight)
        hits, trials = _MEMORY * hits + hit, _MEMORY * trials + 1
        self._counts[cell] = hits, trials
        row[last] = hits / trials

    @property
    def rates(self) -> ProbArray:
        """float64, hit rate of every cell."""
        return np.array(self.table, dtype=np.float64)
