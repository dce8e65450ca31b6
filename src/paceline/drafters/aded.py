"""ADED (Liu et al. 2024, arXiv:2407.12021): tri-gram drafts, adapted to the committed text.

Tri-grams come from the prompt and the target's distributions, not from a corpus. The default
tree search is best-first, which is optimal for known probabilities; "puct" is the paper's.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import ClassVar, Literal

from paceline.drafters.best_first import Guess
from paceline.drafters.context_model import PROMPT_WEIGHT, ContextModel
from paceline.drafters.guesser import Guesser
from paceline.drafters.puct import Searched
from paceline.sequence import Sequence
from paceline.target import Output
from paceline.types import Budget, Needs, TokenTree, Verdict

Search = Literal["best-first", "puct"]

# Context length of a tri-gram.
ORDER = 2

# Most contexts in the table.
CAPACITY = 1 << 16

# Weight of a committed token, relative to one distribution of the target.
ADAPTATION = 1.0

# The paper's number of PUCT trials.
ITERATIONS = 150


class Aded(Guesser[ContextModel]):
    """Tri-gram drafter over all sequences."""

    name: ClassVar[str] = "aded"
    needs: Needs = Needs(node_logits=True)
    ranks: ClassVar[bool] = True

    def __init__(self, search: Search = "best-first", iterations: int = ITERATIONS) -> None:
        """Choose the tree search; the published "puct" is several times slower."""
        self._iterations = iterations if search == "puct" else None
        super().__init__()

    def reset(self) -> None:
        self._model = ContextModel(ORDER, CAPACITY)

    def open(self, sequence: Sequence) -> None:
        self._model.read(sequence.tokens, 0, PROMPT_WEIGHT)

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
        for sequence, draft, output in zip(sequences, drafts, outputs, strict=True):
            if self._left_out(sequence):
                continue
            begin, _ = self._settle(sequence)
            self._model.recycle(
                sequence.tokens[max(0, begin - ORDER) : begin], draft, output.logits
            )
            self._model.read(sequence.tokens, begin, ADAPTATION)

    def _guess(self, sequence: Sequence, budget: Budget) -> Guess:
        model = self._model
        if self._iterations is None:
            return model.grow(sequence.tokens, budget)
        root = model.tail(sequence.tokens)
        return Searched.search(root, budget, model.offers, model.follow, self._iterations)
