"""Lexical units, arXiv:2405.15208 (LUD): what masks behind the text are sure of is text. Lossy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from paceline.core import tree as trees
from paceline.core.options import within
from paceline.core.types import Attention, LogitArray
from paceline.denoising.process import Context, Process, Sampler, Terms
from paceline.denoising.self_verified import Groups
from paceline.denoising.unmasking import check_clean_rows
from paceline.verifiers.matching import Coupled


class LexicalUnits(Sampler):
    """Commit the model's own next token, and behind it the masks' tokens while they are sure.

    How far that goes depends on distributions alone, not on what is drawn from them.
    """

    name: ClassVar[str] = "lexical-units"
    guarantee = "lossy: tokens that masks are sure of are not verified"
    requires = "a denoiser whose clean rows predict the next token"
    paper = "after LUD, Sun et al. 2024, arXiv:2405.15208"
    needs: tuple[Attention, ...] = ("full", "block", "order", "causal")

    def __init__(self, width: int = 3, tau: float = 0.9) -> None:
        """Set how far to look.

        Args:
            width: masks' tokens of a forward, at most.
            tau: least largest probability, exclusive; at 1 the text is the autoregressive one.
        """
        within("width", width, 1, 256)
        within("tau", tau, 0, 1, "1 for none")
        self.width, self.tau = width, tau

    def check(self, terms: Terms) -> None:
        check_clean_rows(self.name, terms.facts)

    def process(self, context: Context) -> Process:
        return Units(context, self.width, self.tau)


class Units(Groups):
    """The text, and one group of masks behind it; nothing is verified."""

    def __init__(self, context: Context, width: int, tau: float) -> None:
        super().__init__(context, width, Coupled(), 0.0)
        self.tau = tau

    def take(self, logits: LogitArray) -> Sequence[int]:
        kept = super().take(logits)
        guesses, self.drafts = self.drafts.tokens.tolist(), trees.EMPTY
        self.canvas.step -= 1  # of the token before them
        unit: list[int] = []
        for row, token in zip(logits[1:], guesses, strict=True):
            soft = self._sampler.proposal(self._without_mask(row[None])[0], unit, soft=True)
            if soft.probs.max() <= self.tau:
                break
            unit.append(token)
            self._append(token, soft.prob(token), row)
        self._sampler.commit(unit)
        self.canvas.final = len(self.canvas.tokens)
        self.canvas.step += 1
        return kept
