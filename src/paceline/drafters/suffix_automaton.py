"""SAM-Decoding (Hu et al. 2024, arXiv:2411.10666): copy on from the longest earlier match.

Suffix automata are searched for the end of the sequence: one of its own text, one of the outputs
of sequences that ended, and one of a corpus if there is one. The draft is a chain, the tokens
behind the latest occurrence of the longest match.

The paper prefers the corpus where its match is longer by a fixed margin, and drafts the further
the longer the match. Here both follow from hit rates by source and length of match: the copy is
drafted that promises most accepted tokens, and the controller cuts it where it no longer pays.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, takewhile
from typing import ClassVar

import numpy as np

from paceline.drafters.automaton import BREAK, Automaton
from paceline.drafters.best_first import Guess
from paceline.drafters.evidence import TRUST, alone, length_kind
from paceline.drafters.recalling import Own, RecallingDrafter
from paceline.drafters.statistics import HitRates
from paceline.types import Budget


class SuffixAutomaton(RecallingDrafter):
    """Chains copied from wherever the last tokens occurred before, however long the match."""

    name: ClassVar[str] = "suffix-automaton"

    def _start_rates(self, sources: int) -> HitRates:
        return HitRates(np.array([alone(), *[alone(TRUST)] * (sources - 1)]), weight=16.0)

    def _guesses(self, own: Own, budget: Budget) -> list[Guess]:
        _, length, end = own.text.match
        found = [self._copy(0, length, _loop(own.text, end), budget)]
        for source, reader in enumerate(own.readers, 1):
            copy = _text_behind(reader.texts, reader.texts.end[reader.state])
            found.append(self._copy(source, reader.length, copy, budget))
        return found

    def _copy(self, source: int, length: int, tokens: Iterator[int], budget: Budget) -> Guess:
        """A chain of `tokens`, behind a match of `length`."""
        rates = self._table[source]
        count = min(budget.nodes, budget.depth) if length else 0
        steps = [
            (token, rates[kind], (source, kind))
            for depth, token in enumerate(islice(tokens, count))
            for kind in (length_kind(length + depth),)
        ]
        return Guess.chain(steps)


def _text_behind(texts: Automaton, end: int) -> Iterator[int]:
    """The tokens behind a place in a log, to the end of the text there."""
    log = texts.log
    return takewhile(BREAK.__ne__, (log[i] for i in range(end + 1, len(log))))


def _loop(text: Automaton, end: int) -> Iterator[int]:
    """The tokens behind a place in a running text, over and over: so loops are continued."""
    log = text.log
    while True:
        yield from (log[i] for i in range(end + 1, len(log)))
