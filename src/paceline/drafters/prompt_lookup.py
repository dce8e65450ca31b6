"""Prompt lookup (Saxena 2023): continue the last n-gram as it was continued before.

The last n tokens, longest n first, are looked up among earlier n-grams of the same sequence, and
the tokens that followed are proposed as a chain. An index from n-gram to the position after it
makes a lookup one dictionary access, whatever the length of the text.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import ClassVar

import numpy as np

from paceline.drafters.base import Drafter
from paceline.drafters.statistics import HitRates
from paceline.sequence import Sequence
from paceline.target import Output
from paceline.types import Budget, TokenTree, Verdict

_LONGEST = 3
_DEPTH = 10
"""Depth up to which hit rates are told apart."""


class _Index:
    """Earlier n-grams of one sequence, n = 1 to 3, each with the position after its last use."""

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}
        self._known = 0

    def extend(self, tokens: List[int]) -> None:
        """Index all n-grams that are followed by a token, once each."""
        for end in range(max(self._known, 1), len(tokens)):
            for n in range(1, min(_LONGEST, end) + 1):
                self._after[tuple(tokens[end - n : end])] = end
        self._known = len(tokens)

    def find(self, tokens: List[int]) -> tuple[int, int]:
        """Length of the longest known n-gram that ends `tokens`, and the position after it."""
        for n in range(min(_LONGEST, len(tokens)), 0, -1):
            position = self._after.get(tuple(tokens[-n:]))
            if position is not None:
                return n, position
        return 0, 0


class PromptLookup(Drafter):
    """Copies from the sequence's own past; free, and good where output repeats input.

    The most recent occurrence is followed. A copy that runs into the end of the text goes on from
    the position it started at, so that loops are continued.
    """

    name: ClassVar[str] = "prompt-lookup"

    def __init__(self) -> None:
        self._indices: dict[int, _Index] = {}
        self._guesses: dict[int, tuple[int, int, list[int]]] = {}
        self.reset()

    def reset(self) -> None:
        """Forget hit rates."""
        # Longer matches are better guesses, and a copy that has held for long tends to go on.
        first = np.array([0.0, 0.25, 0.5, 0.7])[:, None]
        later = 1 - 0.5 * (1 - first) * 0.8 ** np.arange(_DEPTH)
        self._rates = HitRates(np.where(np.arange(_DEPTH) == 0, first, later))

    def open(self, sequence: Sequence) -> None:
        """Index the prompt."""
        index = self._indices[sequence.id] = _Index()
        index.extend(sequence.tokens)

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        """One chain per sequence, empty where not even the last token occurred before."""
        return [self._propose(s, b) for s, b in zip(sequences, budgets, strict=True)]

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
        """Index the new tokens and score the whole guess, verified or not, against them."""
        for sequence in sequences:
            self._indices[sequence.id].extend(sequence.tokens)
            length, begin, guess = self._guesses.pop(sequence.id)
            for depth, (guessed, token) in enumerate(
                zip(guess, sequence.tokens[begin:], strict=False)
            ):
                self._rates.add((length, min(depth, _DEPTH - 1)), guessed == token)
                if guessed != token:
                    break

    def close(self, sequence: Sequence) -> None:
        """Drop the sequence's index."""
        self._indices.pop(sequence.id, None)
        self._guesses.pop(sequence.id, None)

    def _propose(self, sequence: Sequence, budget: Budget) -> TokenTree:
        tokens = sequence.tokens
        length, start = self._indices[sequence.id].find(tokens)
        count = min(budget.nodes, budget.depth) if length else 0
        guess = [tokens[start + i % (len(tokens) - start)] for i in range(count)]
        self._guesses[sequence.id] = (length, len(tokens), guess)
        rates = self._rates.rates[length, np.minimum(np.arange(count), _DEPTH - 1)]
        return TokenTree(
            np.array(guess, dtype=np.int64),
            np.arange(-1, count - 1, dtype=np.int64),
            source=self.name,
            scores=np.cumprod(rates),
        )
