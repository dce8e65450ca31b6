"""The factor rule of Fast-dLLM (arXiv:2505.22618): surer places where more are filled at once."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from paceline.core.options import within
from paceline.denoising.process import Decision, View, best
from paceline.denoising.unmasking import Rule


class Factor(Rule):
    """Fill the n surest places, n the largest with (n + 1)(1 - confidence of the n-th) < factor."""

    name: ClassVar[str] = "factor"
    paper = "Fast-dLLM, Wu et al. 2025, arXiv:2505.22618"

    def __init__(self, factor: float = 1.0) -> None:
        """Set the factor. At 1 the places' argmaxes are that of their joint (theorem 1)."""
        within("factor", factor, 0, np.inf, "0 for one place a step")
        self._factor = factor

    def choose(self, view: View, state: None) -> Decision:
        order = best(view.confidence, len(view.places))
        doubt = (np.arange(len(order)) + 2) * (1 - view.confidence[order])
        fits = np.flatnonzero(doubt < self._factor)
        return Decision(order[: fits[-1] + 1 if len(fits) else 1])
