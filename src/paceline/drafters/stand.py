"""STAND (Song et al. 2025, arXiv:2506.04708): draft from stored n-gram distributions of the target,
averaged and shared by all sequences. Without-replacement drafts use Gumbel-top-k. Added: all
context lengths contribute, prompts are read, and the tree expands by acceptance rates
(`paceline.drafters.drawn`) instead of a fixed shape.
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

# Tokens of the longest context.
ORDER = 3

# Stored contexts.
CAPACITY = 1 << 16


class Stand(Guesser[ContextModel]):
    """Draft from stored target distributions, as likeliest trees or as drawn ones."""

    name: ClassVar[str] = "stand"
    needs: Needs = Needs(node_logits=True)
    ranks: ClassVar[bool] = True

    def __init__(self, vocab_size: int, *, drawn: bool = False, lots: Lots = "noise") -> None:
        """Make an empty model; `drawn` reports a distribution, `lots` is as in `Drawn.draw`."""
        self._vocab_size = vocab_size
        self._drawn = drawn
        self.kind = "without_replacement" if drawn else None
        self._lots: Lots = lots
        super().__init__()

    @classmethod
    def create(cls, context: DrafterContext) -> Self:
        # Drawn where the verifier takes drawn drafts alone.
        drawn = context.report_law and "without_replacement" in context.accepts
        chosen = arguments(cls, "drafter", context.options, "vocab_size", "drawn")
        return cls(context.target.vocab_size, drawn=drawn, **chosen)

    def reset(self) -> None:
        self._model = ContextModel(ORDER, CAPACITY)
        self._accepted = acceptance_rates()

    def open(self, sequence: Sequence) -> None:
        self._model.read(sequence.tokens, 0, PROMPT_WEIGHT)

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
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
