"""Entropy-bounded filling: EB-Sampler (arXiv:2505.24857), as in DiffusionGemma."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from paceline.core.options import within
from paceline.denoising.process import Decision, View, best
from paceline.denoising.unmasking import Rule


class EntropyBound(Rule):
    """Fill places by rising entropy, while the sum of those before stays within `gamma` nats."""

    name: ClassVar[str] = "entropy-bound"
    paper = "EB-Sampler, Ben-Hamu et al. 2025, arXiv:2505.24857"

    def __init__(self, gamma: float = 0.1) -> None:
        within("gamma", gamma, -np.inf, np.inf, "any but NaN")
        self._gamma = gamma

    def choose(self, view: View, state: None) -> Decision:
        order = best(-view.entropy, len(view.places))
        sums = view.entropy[order].cumsum() - view.entropy[order]
        return Decision(order[: max(1, int((sums <= self._gamma).sum()))])
