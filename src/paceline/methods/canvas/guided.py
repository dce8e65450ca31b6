"""An autoregressive guide says how many picks stand: Guided Diffusion of FlashDLM (2505.21467)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from paceline.core.options import within
from paceline.core.types import LogitArray, ProbArray
from paceline.denoising.canvas import Ask
from paceline.denoising.process import Context, Decision, Terms, View
from paceline.denoising.unmasking import Rule, Unmasking, check_clean_rows


class Guided(Rule):
    """Fill masks from the left as far as the guide agrees with the picks, and at least one.

    The guide is the model itself, in a causal forward over text and picks.
    """

    name: ClassVar[str] = "guided"
    requires = "a denoiser whose clean rows predict the next token"
    paper = "after FlashDLM, Hu et al. 2025, arXiv:2505.21467"
    ignores_draws = False
    standard = False

    def __init__(self, top: int = 1, ratio: float = 0.0) -> None:
        """Set what agrees: a pick among the guide's `top` most likely tokens, or with at least
        `ratio` of the largest probability (0 leaves this out)."""
        within("top", top, 1, 2**31)
        within("ratio", ratio, 0, 1, "0 for off")
        self._top, self._ratio = top, ratio

    def agreed(self, logits: ProbArray, view: View) -> int:
        """Return how many of the first picks stand; `logits` are the guide's of their places."""
        picked = logits[np.arange(len(view.picks)), view.picks]
        # Ties count for the lower token, as in an argmax.
        before = (logits > picked[:, None]).sum(axis=1)
        ids = np.arange(logits.shape[1])
        before += ((logits == picked[:, None]) & (ids < view.picks[:, None])).sum(axis=1)
        good = before < self._top
        if self._ratio:
            good |= picked - logits.max(axis=1) >= np.log(self._ratio)
        return int(np.cumprod(good).sum())

    def choose(self, view: View, state: int) -> Decision:
        return Decision(range(max(1, state)))

    def check(self, terms: Terms) -> None:
        check_clean_rows(self.name, terms.facts)

    def process(self, context: Context) -> Unmasking:
        return _GuidedProcess(context, self)


class _GuidedProcess(Unmasking):
    """Two forwards a step: picks, and what the guide says of them."""

    rule: Guided

    def restart(self) -> None:
        self._view: View | None = None
        super().restart()

    def ask(self) -> Ask:
        view = self._view
        if view is None:
            return super().ask()
        tokens = np.asarray(self.canvas.tokens[: view.places[-1]], dtype=np.int64)
        inside = view.places < len(tokens)
        tokens[view.places[inside]] = view.picks[inside]
        count = len(tokens)
        nothing = np.zeros(count, dtype=np.int64)  # kept keys are no causal ones
        sees = np.tri(count, dtype=np.bool_)
        return Ask(tokens, np.arange(count), sees, view.places - 1, nothing)

    def take(self, logits: LogitArray) -> Sequence[int]:
        if self._view is None:
            if not len(self.canvas.masked()):
                return super().take(logits)
            self._view = self.view(logits)
            return self.kept()
        view, self._view = self._view, None
        guide: ProbArray = logits.astype(np.float64)
        guide[:, self.context.facts.mask] = -np.inf
        self.state = self.rule.agreed(guide, view)
        self.fill(view)
        self.settle()
        return ()
