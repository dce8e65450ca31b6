"""SAM-Decoding (Hu et al. 2024, arXiv:2411.10666): copy after the longest earlier match, found by
suffix automata of the own text, ended outputs and a corpus. The paper's fixed margin and length
rule are replaced by hit rates per source and match length.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from paceline.core.types import Budget
from paceline.drafters.candidates import alone, length_kinds
from paceline.drafters.suffix.history import HistoryDrafter, SequenceText
from paceline.policy.acceptance import HitRates
from paceline.policy.constants import OTHER_SOURCE
from paceline.trees.candidates import CandidateTree


class SuffixAutomaton(HistoryDrafter):
    """Copy chains from the longest earlier match of any length."""

    name: ClassVar[str] = "suffix-automaton"

    def _start_rates(self, sources: int) -> HitRates:
        return HitRates(np.array([alone(), *[alone(OTHER_SOURCE)] * (sources - 1)]), weight=16.0)

    def _guesses(self, own: SequenceText, budget: Budget) -> list[CandidateTree]:
        most = min(budget.nodes, budget.depth)
        _, length, end = own.text.match
        found = [self._copy(0, length, _loop(own.text.behind(end, most), most))] if length else []
        for source, reader in enumerate(own.readers, 1):
            _, length, end = reader.match
            if length:
                found.append(self._copy(source, length, reader.texts.behind(end, most)))
        return found

    def _copy(self, source: int, length: int, tokens: list[int]) -> CandidateTree:
        rates = self._rates.table[source]
        kinds = length_kinds(length, len(tokens))
        steps = zip(tokens, kinds, strict=True)
        return CandidateTree.chain([(token, rates[kind], (source, kind)) for token, kind in steps])


def _loop(tokens: list[int], most: int) -> list[int]:
    # Over and over, so that repetition is continued.
    return tokens if len(tokens) == most else (tokens * most)[:most]
