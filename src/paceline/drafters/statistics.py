"""Hit rates per kind of guess: exponentially decayed counts with a prior."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from paceline.types import ProbArray

# Decay per observation of a cell; a cell remembers about 200 trials.
_MEMORY = 0.995


class HitRates:
    """Table of hit rates, one cell per kind of guess.

    Attributes:
        table: nested lists, hit rate of every cell at the moment; lists, since single cells are
            read and written at every step.
        cells: all of them, the last index changing fastest.
        flat: their hit rates in that order, as C++ reads them.
    """

    def __init__(self, prior: ProbArray, weight: float = 4.0) -> None:
        """Start from `prior`, float64 of any shape, believed as much as `weight` trials."""
        self.table: list[Any] = prior.tolist()
        self.cells = list(np.ndindex(prior.shape))
        self.flat = array("d", prior.ravel().tolist())
        self._places = {cell: place for place, cell in enumerate(self.cells)}
        self._rows = [(self._row(cell), cell[-1]) for cell in self.cells]
        self._hits = [rate * weight for rate in self.flat]
        self._trials = [weight] * len(self.flat)

    def add(self, cell: tuple[int, ...], hit: bool) -> None:
        self.count(self._places[cell], hit)

    def count(self, place: int, hit: bool) -> None:
        """Count one trial of the cell with this place in `cells`."""
        hits = self._hits[place] = _MEMORY * self._hits[place] + hit
        trials = self._trials[place] = _MEMORY * self._trials[place] + 1
        row, last = self._rows[place]
        row[last] = self.flat[place] = hits / trials

    def _row(self, cell: tuple[int, ...]) -> list[float]:
        row = self.table
        for index in cell[:-1]:
            row = row[index]
        return row

    @property
    def rates(self) -> ProbArray:
        """Return float64, hit rate of every cell."""
        return np.array(self.table, dtype=np.float64)
