"""STAND (Song et al. 2025, arXiv:2506.04708): drafts drawn from remembered laws of the target.

The target's likeliest tokens after each short context are kept with their probabilities, averaged
and shared by all sequences, so that several attempts at one problem help one another. Where the
verifier needs a drawn draft (`recursive-distinct`), children are drawn from these laws without
replacement by Gumbel-top-k, and the laws are reported; elsewhere the likeliest nodes are drafted.

Additions to the paper: all lengths of context speak (`paceline.drafters.context_model`), prompts
are read too, and instead of a fixed tree that keeps the places that were accepted most often, each
draft grows where acceptance has been likeliest (`paceline.drafters.drawn`).
"""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import ClassVar, Self

from paceline.drafters.base import DrafterContext
from paceline.drafters.best_first import Guess
from paceline.drafters.context_model import PROMPT_WEIGHT, ContextModel
from paceline.drafters.drawn import Drawn, Lots, acceptance_rates
from paceline.drafters.guesser import Guesser
from paceline.options import arguments
from paceline.sequence import Sequence
from paceline.target import Output
from paceline.types import Budget, Needs, TokenTree, Verdict

ORDER = 3
"""Tokens of the longest context."""

CAPACITY = 1 << 16
"""Contexts kept."""


class Stand(Guesser[ContextModel]):
    """Remembered laws of the target, as likeliest trees or as drawn ones."""

    name: ClassVar[str] = "stand"
    needs: Needs = Needs(node_logits=True)
    ranks: ClassVar[bool] = True

    def __init__(self, vocab_size: int, *, drawn: bool = False, lots: Lots = "noise") -> None:
        """Remember nothing.

        Args:
            vocab_size: of the target.
            drawn: draw drafts and report their law.
            lots: see `Drawn.draw`.
        """
        self._vocab_size = vocab_size
        self._drawn = drawn
        self.kind = "without_replacement" if drawn else None
        self._lots: Lots = lots
        super().__init__()

    @classmethod
    def create(cls, context: DrafterContext) -> Self:
        """Draws where the verifier takes drawn drafts alone."""
        drawn = context.report_law and "without_replacement" in context.accepts
        chosen = arguments(cls, "drafter", context.options, "vocab_size", "drawn")
        return cls(context.target.vocab_size, drawn=drawn, **chosen)

    def reset(self) -> None:
        """Forget all laws."""
        self._model = ContextModel(ORDER, CAPACITY)
        self._accepted = acceptance_rates()

    def open(self, sequence: Sequence) -> None:
        """Read the prompt."""
        self._model.read(sequence.tokens, 0, PROMPT_WEIGHT)

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
        """Remember the law of every verified row, rejected ones too, and score the guesses."""
        for sequence, draft, verdict, output in zip(
            sequences, drafts, verdicts, outputs, strict=True
        ):
            if self._left_out(sequence):
                continue
            begin, guess = self._settle(sequence)
            if isinstance(guess, Drawn) and guess.is_source_of(draft):
                guess.settle(verdict, self._accepted)
            self._model.recycle(
                sequence.tokens[max(0, begin - ORDER) : begin], draft, output.logits
            )

    def _guess(self, sequence: Sequence, budget: Budget) -> Guess:
        model = self._model
        if self.kind is None:
            return model.grow(sequence.tokens, budget)
        return Drawn.draw(
            model.tail(sequence.tokens),
            budget,
            model.offers,
            model.follow,
            self._vocab_size,
            len(sequence.tokens),
            sequence.randomness,
            self._accepted,
            self._lots,
        )
