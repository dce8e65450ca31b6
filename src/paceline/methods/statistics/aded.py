"""After ADED (Liu et al. 2024, arXiv:2407.12021): tri-gram drafts, adapted to the committed text.

Tri-grams come from prompts and the target's distributions, not from a corpus, and the search is
best-first, which is optimal for known probabilities. As published: `methods/trigram_search.py`.
"""

from __future__ import annotations

from typing import ClassVar

from paceline.core.types import Budget, Needs
from paceline.drafters.candidates import CandidateDrafter
from paceline.methods.statistics.context_model import PROMPT_WEIGHT, ContextModel
from paceline.sampling.generation import Generation, VerifiedDraft
from paceline.trees.candidates import CandidateTree

# Context length of a tri-gram.
ORDER = 2

# Most contexts in the table.
CAPACITY = 1 << 16

# Weight of a committed token, relative to one distribution of the target.
ADAPTATION = 1.0


class Aded(CandidateDrafter[ContextModel]):
    """Tri-gram drafter over all sequences."""

    name: ClassVar[str] = "aded"
    requires = "logits of rejected nodes"
    paper = "after ADED, Liu et al. 2024, arXiv:2407.12021"
    needs: Needs = Needs(node_logits=True)
    ranks: ClassVar[bool] = True

    def reset(self) -> None:
        self._model = ContextModel(ORDER, CAPACITY)

    def open(self, sequence: Generation) -> None:
        self._model.read(sequence.tokens, 0, PROMPT_WEIGHT)

    def learn(self, verified: VerifiedDraft) -> None:
        sequence, draft, _, output = verified
        if self._left_out(sequence):
            return
        begin, _ = self._settle(sequence)
        self._model.recycle(sequence.tokens[max(0, begin - ORDER) : begin], draft, output.logits)
        self._model.read(sequence.tokens, begin, ADAPTATION)

    def _guess(self, sequence: Generation, budget: Budget) -> CandidateTree:
        return self._model.grow(sequence.tokens, budget)
