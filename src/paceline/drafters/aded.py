"""ADED (Liu et al. 2024, arXiv:2407.12021): tri-gram statistics, adapted to the text, searched.

The statistics come from the prompt and from the target's own laws instead of a corpus, so that
nothing needs to be prepared; where two tokens of context are not enough, one has to do. They are
adapted to the text by counting every committed token again. (The paper adds a little at each
search for the tri-grams of the last 16 tokens; once per token costs less and is as good.)

The paper searches the tree by PUCT (`paceline.drafters.puct`). What its search estimates, the
expected number of accepted tokens, is here known without trials: chances multiply along a path. So
by default the likeliest nodes are taken one after another, which is the best tree for the same
statistics at a fraction of the time.
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

ORDER = 2
"""Tokens of context: a tri-gram holds two and what follows."""

CAPACITY = 1 << 16
"""Contexts kept."""

ADAPTATION = 1.0
"""What a committed token counts for beside a law of the target's."""

ITERATIONS = 150
"""Published number of trials of search "puct"."""


class Aded(Guesser[ContextModel]):
    """Tri-grams of all sequences, adapted to what was committed last."""

    name: ClassVar[str] = "aded"
    needs: Needs = Needs(node_logits=True)
    ranks: ClassVar[bool] = True

    def __init__(self, search: Search = "best-first", iterations: int = ITERATIONS) -> None:
        """Start without statistics.

        Args:
            search: "best-first", or "puct" as published, which takes several times as long.
            iterations: trials of search "puct".
        """
        self._iterations = iterations if search == "puct" else None
        super().__init__()

    def reset(self) -> None:
        """Forget all statistics."""
        self._model = ContextModel(ORDER, CAPACITY)

    def open(self, sequence: Sequence) -> None:
        """Count the prompt."""
        self._model.read(sequence.tokens, 0, PROMPT_WEIGHT)

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
        """Learn from every verified law, adapt to what was committed, and score the guesses."""
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
