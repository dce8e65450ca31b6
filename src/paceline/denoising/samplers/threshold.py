"""All places that the model is sure of: Fast-dLLM (arXiv:2505.22618), SDAR (arXiv:2510.06303)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from paceline.core.options import require
from paceline.denoising.process import Choice, View, best
from paceline.denoising.unmasking import Rule


class Threshold(Rule):
    """Fill places whose largest probability exceeds `tau`, or else the surest `least`."""

    name: ClassVar[str] = "threshold"

    def __init__(self, tau: float = 0.9, least: int = 1) -> None:
        require(tau >= 0, "tau", tau, "0 (all) or more; above 1 fills one place a step")
        require(least >= 1, "least", least, "1 or more")
        self._tau, self._least = tau, least

    def choose(self, view: View, state: None) -> Choice:
        sure = np.flatnonzero(view.confidence > self._tau)
        return Choice(sure if len(sure) >= self._least else best(view.confidence, self._least))
