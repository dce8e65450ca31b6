"""Prompt lookup (Saxena 2023): find the last n-gram, longest n first, earlier in the sequence and
draft the tokens that followed it. A hash index makes each lookup one dictionary access.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import ClassVar

import numpy as np

from paceline.core.target import Output
from paceline.core.types import Budget, TokenTree, Verdict
from paceline.drafters.base import Drafter
from paceline.policy.acceptance import HitRates
from paceline.policy.constants import LOOKUP_DEPTHS
from paceline.sampling.sequence import Sequence

_LONGEST = 3


class _Index:
    # Earlier n-grams of one sequence, each with the position after its last use.

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}
        self._known = 0

    def extend(self, tokens: List[int]) -> None:
        for end in range(max(self._known, 1), len(tokens)):
            for n in range(1, min(_LONGEST, end) + 1):
                self._after[tuple(tokens[end - n : end])] = end
        self._known = len(tokens)

    def find(self, tokens: List[int]) -> tuple[int, int]:
        for n in range(min(_LONGEST, len(tokens)), 0, -1):
            position = self._after.get(tuple(tokens[-n:]))
            if position is not None:
                return n, position
        return 0, 0


class PromptLookup(Drafter):
    """Copy from the sequence's own past; good where output repeats input.

    A copy that reaches the end of the text continues from its start, so repetition is continued.
    """

    name: ClassVar[str] = "prompt-lookup"

    def __init__(self) -> None:
        self._indices: dict[int, _Index] = {}
        self._guesses: dict[int, tuple[int, int, list[int]]] = {}
        self.reset()

    def reset(self) -> None:
        # Longer matches are better guesses, and a copy that has held for long tends to go on.
        first = np.array([0.0, 0.25, 0.5, 0.7])[:, None]
        later = 1 - 0.5 * (1 - first) * 0.8 ** np.arange(LOOKUP_DEPTHS)
        self._rates = HitRates(np.where(np.arange(LOOKUP_DEPTHS) == 0, first, later))

    def open(self, sequence: Sequence) -> None:
        index = self._indices[sequence.id] = _Index()
        index.extend(sequence.tokens)

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        return [self._propose(s, b) for s, b in zip(sequences, budgets, strict=True)]

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
        for sequence in sequences:
            self._indices[sequence.id].extend(sequence.tokens)
            length, begin, guess = self._guesses.pop(sequence.id)
            for depth, (guessed, token) in enumerate(
                zip(guess, sequence.tokens[begin:], strict=False)
            ):
                self._rates.add((length, min(depth, LOOKUP_DEPTHS - 1)), guessed == token)
                if guessed != token:
                    break

    def close(self, sequence: Sequence) -> None:
        self._indices.pop(sequence.id, None)
        self._guesses.pop(sequence.id, None)

    def _propose(self, sequence: Sequence, budget: Budget) -> TokenTree:
        tokens = sequence.tokens
        length, start = self._indices[sequence.id].find(tokens)
        count = min(budget.nodes, budget.depth) if length else 0
        guess = [tokens[start + i % (len(tokens) - start)] for i in range(count)]
        self._guesses[sequence.id] = (length, len(tokens), guess)
        rates = self._rates.rates[length, np.minimum(np.arange(count), LOOKUP_DEPTHS - 1)]
        return TokenTree(
            np.array(guess, dtype=np.int64),
            np.arange(-1, count - 1, dtype=np.int64),
            source=self.name,
            scores=np.cumprod(rates),
        )
