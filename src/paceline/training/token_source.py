"""Batches for networks that read tokens alone and are trained on labels alone."""

from __future__ import annotations

import numpy as np

from paceline.training.batches import FeatureSource
from paceline.training.data.writing import Text
from paceline.types import LogitArray


class TokenSource(FeatureSource):
    """Zeros for features: the target, which costs most of a run, is not asked."""

    def __init__(self, hidden_size: int) -> None:
        """Zeros of the target's width."""
        self._width = 4 * hidden_size

    def of(self, text: Text) -> LogitArray:
        """float32 `[tokens, 4 * hidden_size]`."""
        return np.zeros((len(text.tokens), self._width), dtype=np.float32)
