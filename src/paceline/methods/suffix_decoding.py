"""SuffixDecoding (Oliaro et al. 2024, arXiv:2411.04975): trees from counts of what followed, in the
own text and in ended outputs (`History`), for contexts of up to 32 tokens (the paper: 64). Modes
"path" and "tree" are as published. Mode "blend", the default, is an addition: several context
lengths of both sources offer tokens, longest first, as in prediction by partial matching.
"""

from __future__ import annotations

from array import array
from typing import ClassVar, Literal

from paceline.core.types import Budget
from paceline.drafters.candidates import evidence_rates, weigh
from paceline.drafters.suffix.automaton import BEST, Automaton, Match
from paceline.drafters.suffix.history import CAPACITY, HistoryDrafter, SequenceText
from paceline.errors import InvalidOption
from paceline.native.library import address, calls
from paceline.policy.acceptance import HitRates
from paceline.policy.constants import BLEND_CONTEXTS, OTHER_SOURCE, TRIED_CONTEXTS
from paceline.trees.candidates import CandidateTree, Offer, Workspace

# Offers of one length of context, from both texts.
_MOST = 2 * BEST

Mode = Literal["path", "tree", "blend"]

_OWN, _HISTORY = 0, 1


class SuffixDecoding(HistoryDrafter):
    """Draft trees from the counts of what followed in the sequence and in earlier outputs."""

    name: ClassVar[str] = "suffix-decoding"
    paper = "after SuffixDecoding, Oliaro et al. 2024, arXiv:2411.04975"

    def __init__(self, mode: Mode = "blend", capacity: int = CAPACITY) -> None:
        """Start with a history of `capacity` tokens. Raises InvalidOption."""
        if mode not in ("path", "tree", "blend"):
            raise InvalidOption(f"mode {mode!r} is unknown: use path, tree or blend")
        super().__init__(capacity)
        self._mode = mode
        self._out = Workspace()

    def _start_rates(self, sources: int) -> HitRates:
        return evidence_rates(1.0, *[OTHER_SOURCE] * (sources - 1))

    def _guesses(self, own: SequenceText, budget: Budget) -> list[CandidateTree]:
        [reader] = own.readers
        draft = self._blend if self._mode == "blend" else self._best_context
        return [draft(own.text, own.text.match, reader.match, budget)]

    def _blend(self, text: Automaton, own: Match, other: Match, budget: Budget) -> CandidateTree:
        # The most probable nodes after both contexts: `native/drafting/suffixes.hpp`.
        at, known = array("i", (*own[:2], *other[:2])), self._rates.flat
        nodes, out = budget.nodes, self._out
        out.fit(nodes, (1 + nodes) * BLEND_CONTEXTS * _MOST)
        count = calls("grow_").suffixes(
            text.address,
            self.history.texts.address,
            address(at),
            nodes,
            budget.depth,
            BLEND_CONTEXTS,
            address(known),
            out.numbers,
            out.chances,
        )
        if count < 0:
            raise MemoryError("no memory to grow a draft")
        return out.guess(count, self._rates)

    def _best_context(
        self, text: Automaton, own: Match, other: Match, budget: Budget
    ) -> CandidateTree:
        best = CandidateTree()
        sources = ((_OWN, text, *own[:2]), (_HISTORY, self.history.texts, *other[:2]))
        for source, automaton, state, length in sources:
            for _ in range(TRIED_CONTEXTS):
                if not state:
                    break
                guess = self._from_context(source, automaton, (state, length), budget)
                if guess.score > best.score:  # equal scores: the own text, and the longer match
                    best = guess
                state, length = automaton.back_off(state)
        return best

    def _from_context(
        self, source: int, automaton: Automaton, context: tuple[int, int], budget: Budget
    ) -> CandidateTree:
        width = 1 if self._mode == "path" else None

        def offers(place: tuple[int, int], reach: float) -> list[Offer]:
            state, length = place
            followers = automaton.followers(state)[:width]
            found = (source, length, automaton.followed(state), followers)
            return weigh([found], self._rates.table, reach)

        def follow(place: tuple[int, int], token: int) -> tuple[int, int]:
            return automaton.follow(*place, token)

        return CandidateTree.grow(context, budget, offers, follow)
