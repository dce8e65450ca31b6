"""All the rest once the model is sure of it: Prophet (arXiv:2508.19982)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from paceline.core.options import within
from paceline.denoising.process import Decision, View
from paceline.denoising.unmasking import Rule, Wrapper


class Prophet(Wrapper):
    """Fill the whole block if the mean gap of its two best logits reaches a bound.

    The bound falls with the share of the block that is filled: below a third, two thirds, all.
    """

    name: ClassVar[str] = "prophet"
    requires = "a rule: prophet>counts"
    paper = "after Prophet, Li et al. 2025, arXiv:2508.19982"

    def __init__(
        self, inner: Rule, early: float = 7.5, middle: float = 5.0, late: float = 2.5
    ) -> None:
        super().__init__(inner)
        for name, bound in ("early", early), ("middle", middle), ("late", late):
            within(name, bound, -np.inf, np.inf, "any but NaN")
        self._bounds = early, middle, late

    def choose(self, view: View, state: Any) -> Decision:
        done = 1 - len(view.places) / len(view.canvas.block)
        bound = self._bounds[(done >= 1 / 3) + (done >= 2 / 3)]
        second, first = np.partition(view.scores, -2, axis=1)[:, -2:].T
        free = second > -np.inf  # a place with one token left says nothing of the others
        if bound == -np.inf or not free.any() or (first[free] - second[free]).mean() >= bound:
            return Decision(np.arange(len(view.places)))
        return self.inner.choose(view, state)
