"""All places that the model is sure of: Fast-dLLM (arXiv:2505.22618), SDAR (arXiv:2510.06303)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from paceline.core.options import within
from paceline.denoising.counts import MOST
from paceline.denoising.process import Decision, View, best
from paceline.denoising.unmasking import Rule


class Threshold(Rule):
    """Fill places whose largest probability exceeds `tau`, or else the surest `least`."""

    name: ClassVar[str] = "threshold"
    paper = "Fast-dLLM, Wu et al. 2025, arXiv:2505.22618; SDAR, Cheng et al. 2025, arXiv:2510.06303"

    def __init__(self, tau: float = 0.9, least: int = 1) -> None:
        within("tau", tau, 0, np.inf, "above 1 fills one place a step")
        within("least", least, 1, MOST)
        self._tau, self._least = tau, least

    def choose(self, view: View, state: None) -> Decision:
        sure = np.flatnonzero(view.confidence > self._tau)
        return Decision(sure if len(sure) >= self._least else best(view.confidence, self._least))
