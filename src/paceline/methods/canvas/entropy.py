"""Places of little entropy: dParallel (arXiv:2509.26488), WeDLM (arXiv:2512.22737)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from paceline.core.options import within
from paceline.denoising.process import Decision, View, best
from paceline.denoising.unmasking import Rule


class Entropy(Rule):
    """Fill places of at most `tau` nats, or else the one with the least."""

    name: ClassVar[str] = "entropy"
    paper = (
        "dParallel's decoding, Chen et al. 2025, arXiv:2509.26488; WeDLM's rule, Liu et al. 2025,"
        " arXiv:2512.22737"
    )
    needs = ("full", "block", "order")

    def __init__(self, tau: float = 0.5, penalty: float = 0.0) -> None:
        """Set the bound; `penalty` nats are added a place right of the first mask (WeDLM)."""
        within("tau", tau, -np.inf, np.inf, "any but NaN")
        within("penalty", penalty, 0, 1e6)
        self._tau, self._penalty = tau, penalty

    def choose(self, view: View, state: None) -> Decision:
        value = view.entropy + self._penalty * (view.places - view.places[0])
        low = np.flatnonzero(value <= self._tau)
        return Decision(low if len(low) else best(-value))
