"""More around sure places: LocalLeap (arXiv:2510.07081)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from paceline.core.options import within
from paceline.denoising.counts import MOST
from paceline.denoising.process import Decision, View, best
from paceline.denoising.unmasking import Rule


class LocalLeap(Rule):
    """Fill places surer than `tau`, and those surer than `relaxed` within `radius` of one."""

    name: ClassVar[str] = "local-leap"
    paper = "LocalLeap, Kong et al. 2025, arXiv:2510.07081"

    def __init__(self, tau: float = 0.9, radius: int = 4, relaxed: float = 0.75) -> None:
        within("tau", tau, 0, np.inf)
        within("radius", radius, 0, MOST, "0 for sure places alone")
        within("relaxed", relaxed, 0, np.inf)
        self._tau, self._radius, self._relaxed = tau, radius, relaxed

    def choose(self, view: View, state: None) -> Decision:
        anchors = view.confidence > self._tau
        if not anchors.any():
            return Decision(best(view.confidence))
        apart = np.abs(view.places[:, None] - view.places[anchors]).min(axis=1)
        near = (apart <= self._radius) & (view.confidence > self._relaxed)
        return Decision(np.flatnonzero(anchors | near))
