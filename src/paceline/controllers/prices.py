"""Cost of bandit choices: a batch's step seconds, shared among its sequences by least squares."""

from __future__ import annotations

from collections.abc import Sequence as List

import numpy as np

from paceline.types import IntArray, ProbArray

# Decay per step.
_MEMORY = 0.998

# Sequence-steps that the prior of a share counts for.
_BELIEF = 0.05

# Prior of a share, in units of the mean.
_HOPE = 0.5

# A step that takes more than this many times the usual says little about its choices.
_OUTLIER = 4.0


class Prices:
    """Seconds by choice, for batches of one size. An untried choice gets half the mean cost."""

    def __init__(self, choices: int) -> None:
        self._gram: ProbArray = np.zeros((choices, choices))
        self._moments: ProbArray = np.zeros(choices)
        self._tokens = self._seconds = self._sequences = 0.0

    def add(self, chosen: List[int] | IntArray, tokens: int, seconds: float) -> None:
        """Add a step: the choice of each sequence, tokens committed, time taken."""
        counts = np.bincount(chosen, minlength=len(self._moments)).astype(np.float64)
        if self._seconds:
            usual = max(float(counts @ self.shares), len(chosen) * self._mean)
            seconds = min(seconds, _OUTLIER * usual)
        self._gram = _MEMORY * self._gram + np.outer(counts, counts)
        self._moments = _MEMORY * self._moments + counts * seconds
        self._tokens = _MEMORY * self._tokens + tokens
        self._seconds = _MEMORY * self._seconds + seconds
        self._sequences = _MEMORY * self._sequences + len(chosen)

    @property
    def shares(self) -> ProbArray:
        """Return float64 `[choices]`, seconds that a sequence adds to a step by each choice."""
        ridge = _BELIEF * np.eye(len(self._moments))
        seconds = self._moments + _BELIEF * _HOPE * self._mean
        return np.linalg.solve(self._gram + ridge, seconds).astype(np.float64, copy=False)

    @property
    def _mean(self) -> float:
        return self._seconds / max(self._sequences, 1.0)

    @property
    def rate(self) -> float:
        """Return committed tokens per second of the batch; 0 before anything was observed."""
        return self._tokens / self._seconds if self._seconds else 0.0
