"""Continuous integrate-and-fire (CIF: Dong and Xu 2020, arXiv:1905.11235).

Weights of rows are added until they reach 1: then the weighted sum of the rows is emitted, and what
the last of them has beyond belongs to the next.
"""

from __future__ import annotations

import numpy as np

from paceline.core.types import LogitArray, ProbArray

_TAIL = 0.45
"""Weights that are left at the end fire once more above this (FunASR's)."""


class Firing:
    """Emissions of rows that come in parts: those of the parts are those of the whole."""

    def __init__(self, width: int) -> None:
        self._held, self._sum = 0.0, np.zeros(width)

    def push(self, weights: ProbArray, rows: LogitArray) -> list[ProbArray]:
        """Take in rows `[n, width]` with weights in [0, 1]; return emissions, float64 `[width]`."""
        out = []
        for weight, row in zip(weights.tolist(), rows.astype(np.float64), strict=True):
            rest = weight
            if self._fires(self._held + weight):
                part = 1 - self._held
                out.append(self._sum + part * row)
                rest, self._held, self._sum = weight - part, 0.0, np.zeros_like(row)
            self._held += rest
            self._sum = self._sum + rest * row
        return out

    def end(self) -> list[ProbArray]:
        """Return the emission of what is left, if it fires; its weights sum to 1 as any other's."""
        return [self._sum / self._held] if self._held > _TAIL else []

    def _fires(self, held: float) -> bool:
        return held >= 1
