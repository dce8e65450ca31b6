"""Input-guided aggressive decoding (Sun et al. 2021, arXiv:2106.04970; Ge et al. 2022,
arXiv:2205.10350): copy the rest of the prompt from where the output is aligned with it. After a
mismatch it aligns again by a unique n-gram of the last 1 to 3 tokens. Added: where none is unique,
the longest n-gram that occurs is taken, with hit rates of its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from paceline.core.types import Budget
from paceline.drafters.candidates import CandidateDrafter, RatesOnly, alone, length_kind
from paceline.policy.acceptance import HitRates
from paceline.policy.constants import OTHER_SOURCE
from paceline.sampling.generation import Generation
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

    def __init__(self, source: Sequence[int]) -> None:
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

    def follow(self, tokens: Sequence[int]) -> None:
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


class InputGuided(CandidateDrafter[RatesOnly]):
    """Copy chains from the prompt, for edits and corrections."""

    name: ClassVar[str] = "input-guided"
    requires = "a prompt that the output repeats"
    paper = "after IAD, Sun et al. 2021, arXiv:2106.04970; Ge et al. 2022, arXiv:2205.10350"

    def __init__(self) -> None:
        self._opened: dict[int, int] = {}  # tokens that each sequence had
        self._alignments: dict[int, Alignment] = {}
        super().__init__()

    def reset(self) -> None:
        rates = np.array([alone(OTHER_SOURCE), alone()])
        self._model = RatesOnly(HitRates(rates, weight=16.0))

    def open(self, sequence: Generation) -> None:
        self._opened[sequence.id] = len(sequence.tokens)

    def close(self, sequence: Generation) -> None:
        super().close(sequence)
        self._opened.pop(sequence.id, None)
        self._alignments.pop(sequence.id, None)

    def _guess(self, sequence: Generation, budget: Budget) -> CandidateTree:
        if not (budget.nodes and budget.depth):
            return CandidateTree()
        place = self._alignments.get(sequence.id)
        if place is None:
            source = sequence.tokens[: self._opened[sequence.id]]
            place = self._alignments[sequence.id] = Alignment(source)
        place.follow(sequence.tokens)
        rest = []
        if place.at is not None:
            rest = place.source[place.at : place.at + min(budget.nodes, budget.depth)]
        rates = self._model.rates.table
        cells = [(int(place.sure), length_kind(place.run + depth)) for depth in range(len(rest))]
        steps = [(t, rates[c[0]][c[1]], c) for t, c in zip(rest, cells, strict=True)]
        return CandidateTree.chain(steps)
