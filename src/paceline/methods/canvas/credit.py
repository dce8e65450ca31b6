"""Credits for tokens that were predicted before: CreditDecoding (arXiv:2510.06133)."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np

from paceline.core.options import within
from paceline.core.types import ProbArray
from paceline.denoising.canvas import Canvas
from paceline.denoising.process import Decision, View
from paceline.denoising.unmasking import Rule, Wrapper


class _CreditState(NamedTuple):
    credits: dict[int, ProbArray]
    inner: Any


class Credit(Wrapper):
    """Add alpha log(1 + credit) to logits; each step's most likely token gains confidence ** gamma.

    Credits of a block fade by `beta` a step.
    """

    name: ClassVar[str] = "credit"
    requires = "a rule: credit>threshold"
    paper = "CreditDecoding, Wang et al. 2025, arXiv:2510.06133"

    def __init__(
        self, inner: Rule, alpha: float = 0.7, gamma: float = 0.2, beta: float = 0.8
    ) -> None:
        super().__init__(inner)
        within("alpha", alpha, 0, 1e6, "0 for no credits")
        within("gamma", gamma, 0, 1e6)
        within("beta", beta, 0, 1)
        self._alpha, self._gamma, self._beta = alpha, gamma, beta

    def begin(self, canvas: Canvas) -> _CreditState:
        return _CreditState({}, self.inner.begin(canvas))

    def view(self, view: View, state: _CreditState) -> View:
        rows = []
        for place, distribution in zip(view.places.tolist(), view.probs, strict=True):
            credit = state.credits.get(place)
            credit = np.zeros(len(distribution)) if credit is None else self._beta * credit
            credit[distribution.argmax()] += distribution.max() ** self._gamma
            state.credits[place] = credit
            rows.append(credit)
        # Infinite scores stay as they are.
        view = view.rescored(view.scores + self._alpha * np.log1p(np.stack(rows)))
        return self.inner.view(view, state.inner)

    def choose(self, view: View, state: _CreditState) -> Decision:
        return self.inner.choose(view, state.inner)
