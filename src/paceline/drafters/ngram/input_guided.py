"""Input-guided aggressive decoding (Sun et al. 2021, arXiv:2106.04970; Ge et al. 2022,
arXiv:2205.10350): copy the rest of the prompt from where the output is aligned with it. After a
mismatch it aligns again by a unique n-gram of the last 1 to 3 tokens. Added: where none is unique,
the longest n-gram that occurs is taken, with hit rates of its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as List
from typing import ClassVar

import numpy as np

from paceline.core.target import Output
from paceline.core.types import Budget, TokenTree, Verdict
from paceline.drafters.base import Drafter
from paceline.drafters.candidates import alone, length_kind
from paceline.policy.acceptance import HitRates
from paceline.policy.constants import OTHER_SOURCE
from paceline.sampling.sequence import Sequence
from paceline.trees.candidates import CandidateTree

# Longest n-gram that the output is aligned by.
_LONGEST = 3


class Alignment:
    """Position in a source that its edited copy has reached.

    Attributes:
        at: index in the source of the next token of the copy; None if unknown.
        run: tokens up to there that agree, the aligning n-gram included.
        sure: whether that n-gram was unique in the rest of the source.
    """

    def __init__(self, source: List[int]) -> None:
        self.source = list(source)
        self.at: int | None = None
        self.run = 0
        self.sure = False
        self._copy: list[int] = []
        self._read = len(source)
        self._rest = 0  # where the rest of the source begins
        self._anchor = 0  # length of the n-gram that the copy was aligned by
        self._behind: dict[tuple[int, ...], list[int]] = {}
        for end in range(1, len(source)):  # nothing follows the last token
            for n in range(1, min(_LONGEST, end) + 1):
                self._behind.setdefault(tuple(source[end - n : end]), []).append(end)

    def follow(self, tokens: List[int]) -> None:
        """Read new tokens of a text, which is the source and then its copy so far."""
        for token in tokens[self._read :]:
            self.go_on(token)
        self._read = len(tokens)

    def go_on(self, token: int) -> None:
        self._copy = [*self._copy[1 - _LONGEST :], token]
        if self.at is not None and self.source[self.at] == token:
            self.at += 1
            self.run += 1
            if self.at < len(self.source):
                return
        if self.at is not None and self.run > self._anchor:
            self._rest = self.at  # something agreed after the anchor: the place was right
        self.at = None
        self._align()

    def _align(self) -> None:
        grams = [tuple(self._copy[-n:]) for n in range(1, len(self._copy) + 1)]
        for gram in grams:
            places, ahead = self._places(gram)
            if len(places) - ahead == 1:
                return self._settle(gram, places[ahead], True)
        for gram in reversed(grams):
            places, ahead = self._places(gram)
            if places:
                return self._settle(gram, places[min(ahead, len(places) - 1)], False)

    def _places(self, gram: tuple[int, ...]) -> tuple[list[int], int]:
        places = self._behind.get(gram, [])
        return places, bisect_left(places, self._rest + len(gram))

    def _settle(self, gram: tuple[int, ...], at: int, sure: bool) -> None:
        self.at, self.sure = at, sure
        self.run = self._anchor = len(gram)


class InputGuided(Drafter):
    """Copy chains from the prompt, for edits and corrections."""

    name: ClassVar[str] = "input-guided"

    def __init__(self) -> None:
        self._opened: dict[int, int] = {}  # tokens that each sequence had
        self._alignments: dict[int, Alignment] = {}
        self._guesses: dict[int, tuple[int, CandidateTree]] = {}
        self.reset()

    def reset(self) -> None:
        self._rates = HitRates(np.array([alone(OTHER_SOURCE), alone()]), weight=16.0)

    def open(self, sequence: Sequence) -> None:
        self._opened[sequence.id] = len(sequence.tokens)

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        rates = self._rates.table
        return [self._propose(s, b, rates) for s, b in zip(sequences, budgets, strict=True)]

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
        for sequence in sequences:
            if sequence.id in self._guesses:
                begin, guess = self._guesses.pop(sequence.id)
                guess.learn(sequence.tokens[begin:], self._rates)

    def close(self, sequence: Sequence) -> None:
        self._opened.pop(sequence.id, None)
        self._alignments.pop(sequence.id, None)
        self._guesses.pop(sequence.id, None)

    def _propose(self, sequence: Sequence, budget: Budget, rates: list[list[float]]) -> TokenTree:
        if not (budget.nodes and budget.depth):
            return CandidateTree().tree(self.name)
        place = self._alignments.get(sequence.id)
        if place is None:
            source = sequence.tokens[: self._opened[sequence.id]]
            place = self._alignments[sequence.id] = Alignment(source)
        place.follow(sequence.tokens)
        rest = []
        if place.at is not None:
            rest = place.source[place.at : place.at + min(budget.nodes, budget.depth)]
        cells = [(int(place.sure), length_kind(place.run + depth)) for depth in range(len(rest))]
        steps = [(t, rates[c[0]][c[1]], c) for t, c in zip(rest, cells, strict=True)]
        guess = CandidateTree.chain(steps)
        self._guesses[sequence.id] = (len(sequence.tokens), guess)
        return guess.tree(self.name)
