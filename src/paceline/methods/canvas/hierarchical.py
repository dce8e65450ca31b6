"""Far places first: the hierarchical decoder of dInfer (arXiv:2510.08666)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from paceline.core.options import within
from paceline.denoising.process import Decision, View, best
from paceline.denoising.unmasking import Rule


class Hierarchical(Rule):
    """Fill places surer than `high`, the surest of each run of masks if above `low`, and the best.

    Places of different runs are far apart, and depend less on each other.
    """

    name: ClassVar[str] = "hierarchical"
    paper = "dInfer, Ma et al. 2025, arXiv:2510.08666"

    def __init__(self, low: float = 0.4, high: float = 0.9) -> None:
        within("high", high, 0, np.inf)
        within("low", low, 0, high, "which is high")
        self._low, self._high = low, high

    def choose(self, view: View, state: None) -> Decision:
        sure = view.confidence
        runs = np.split(np.arange(len(sure)), np.flatnonzero(np.diff(view.places) > 1) + 1)
        tops = [run[sure[run].argmax()] for run in runs]
        chosen = {index for index in tops if sure[index] > self._low}
        chosen |= {*np.flatnonzero(sure > self._high), *best(sure)}
        return Decision(sorted(map(int, chosen)))
