"""SAM-Decoding (Hu et al. 2024, arXiv:2411.10666): copy on from the longest earlier match.

Suffix automata are searched for the end of the sequence: one of its own text, one of the outputs
of sequences that ended, and one of a corpus if there is one. The draft is a chain, the tokens
behind the latest occurrence of the longest match.

The paper prefers the corpus where its match is longer by a fixed margin, and drafts the further
the longer the match. Here both follow from hit rates by source and length of match: the copy is
drafted that promises most accepted tokens, and the controller cuts it where it no longer pays.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from paceline.drafters.best_first import Guess
from paceline.drafters.evidence import TRUST, alone, length_kinds
from paceline.drafters.recalling import Own, RecallingDrafter
from paceline.drafters.statistics import HitRates
from paceline.types import Budget


class SuffixAutomaton(RecallingDrafter):
    """Chains copied from wherever the last tokens occurred before, however long the match."""

    name: ClassVar[str] = "suffix-automaton"

    def _start_rates(self, sources: int) -> HitRates:
        return HitRates(np.array([alone(), *[alone(TRUST)] * (sources - 1)]), weight=16.0)

    def _guesses(self, own: Own, budget: Budget) -> list[Guess]:
        most = min(budget.nodes, budget.depth)
        _, length, end = own.text.match
        found = [self._copy(0, length, _loop(own.text.behind(end, most), most))] if length else []
        for source, reader in enumerate(own.readers, 1):
            _, length, end = reader.match
            if length:
                found.append(self._copy(source, length, reader.texts.behind(end, most)))
        return found

    def _copy(self, source: int, length: int, tokens: list[int]) -> Guess:
        """A chain of `tokens`, behind a match of `length`."""
        rates = self._rates.table[source]
        kinds = length_kinds(length, len(tokens))
        steps = zip(tokens, kinds, strict=True)
        return Guess.chain([(token, rates[kind], (source, kind)) for token, kind in steps])


def _loop(tokens: list[int], most: int) -> list[int]:
    """Tokens behind a place in a running text, over and over: so loops are continued."""
    return tokens if len(tokens) == most else (tokens * most)[:most]
