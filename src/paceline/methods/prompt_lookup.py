"""Prompt lookup (Saxena 2023): find the last n-gram, longest n first, earlier in the sequence and
draft the tokens that followed it. A hash index makes each lookup one dictionary access.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from paceline.core.types import Budget
from paceline.drafters.candidates import CandidateDrafter, RatesOnly
from paceline.policy.acceptance import HitRates
from paceline.policy.constants import LOOKUP_DEPTHS
from paceline.sampling.generation import Generation
from paceline.trees.candidates import CandidateTree

_LONGEST = 3


class _Index:
    # Earlier n-grams of one sequence, each with the position after its last use.

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}
        self._known = 0

    def extend(self, tokens: Sequence[int]) -> None:
        for end in range(max(self._known, 1), len(tokens)):
            for n in range(1, min(_LONGEST, end) + 1):
                self._after[tuple(tokens[end - n : end])] = end
        self._known = len(tokens)

    def find(self, tokens: Sequence[int]) -> tuple[int, int]:
        for n in range(min(_LONGEST, len(tokens)), 0, -1):
            position = self._after.get(tuple(tokens[-n:]))
            if position is not None:
                return n, position
        return 0, 0


class PromptLookup(CandidateDrafter[RatesOnly]):
    """Copy from the sequence's own past; good where output repeats input.

    A copy that reaches the end of the text continues from its start, so repetition is continued.
    """

    name: ClassVar[str] = "prompt-lookup"
    paper = "Prompt Lookup Decoding, Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding"

    def __init__(self) -> None:
        self._indices: dict[int, _Index] = {}
        super().__init__()

    def reset(self) -> None:
        # Longer matches are better guesses, and a copy that has held for long tends to go on.
        first = np.array([0.0, 0.25, 0.5, 0.7])[:, None]
        later = 1 - 0.5 * (1 - first) * 0.8 ** np.arange(LOOKUP_DEPTHS)
        rates = np.where(np.arange(LOOKUP_DEPTHS) == 0, first, later)
        self._model = RatesOnly(HitRates(rates))

    def open(self, sequence: Generation) -> None:
        index = self._indices[sequence.id] = _Index()
        index.extend(sequence.tokens)

    def close(self, sequence: Generation) -> None:
        super().close(sequence)
        self._indices.pop(sequence.id, None)

    def _guess(self, sequence: Generation, budget: Budget) -> CandidateTree:
        tokens, index = sequence.tokens, self._indices[sequence.id]
        index.extend(tokens)
        length, start = index.find(tokens)
        count = min(budget.nodes, budget.depth) if length else 0
        cells = [(length, min(depth, LOOKUP_DEPTHS - 1)) for depth in range(count)]
        rates, period = self._model.rates.table[length], len(tokens) - start
        return CandidateTree.chain(
            [(tokens[start + i % period], rates[cell[1]], cell) for i, cell in enumerate(cells)]
        )
