"""SuffixDecoding (Oliaro et al. 2024, arXiv:2411.04975): trees from counts of what followed, in the
own text and in ended outputs (`History`), for contexts of up to 32 tokens (the paper: 64). Modes
"path" and "tree" are as published. Mode "blend", the default, is an addition: several context
lengths of both sources offer tokens, longest first, as in prediction by partial matching.
"""

from __future__ import annotations

from array import array
from operator import itemgetter
from typing import ClassVar, Literal

from paceline.core.types import Budget
from paceline.drafters.candidates import Evidence, evidence_rates, weigh
from paceline.drafters.suffix.automaton import (
    BEST,
    ROOT_STATE,
    Automaton,
    Match,
    NativeAutomaton,
    Outlook,
)
from paceline.drafters.suffix.history import CAPACITY, HistoryDrafter, SequenceText
from paceline.errors import InvalidOption
from paceline.native.library import calls
from paceline.policy.acceptance import HitRates
from paceline.policy.constants import BLEND_CONTEXTS, OTHER_SOURCE, TRIED_CONTEXTS
from paceline.trees.candidates import CandidateTree, Offer, Workspace

# Tree expansion of `SuffixDecoding` in C++ (`native/drafting/suffixes.hpp`):

# Offers of one length of context, from both texts.
_MOST = 2 * BEST


class NativeSuffixes:
    """Expand trees from two suffix automata."""

    def __init__(self, contexts: int) -> None:
        # So many lengths of context per text offer tokens for one node.
        self._contexts = contexts
        self._out = Workspace()

    def grow(
        self,
        texts: tuple[NativeAutomaton, NativeAutomaton],
        matches: tuple[Match, Match],
        budget: Budget,
        rates: HitRates,
    ) -> CandidateTree:
        """Expand the most probable nodes after both contexts. MemoryError: no room for them."""
        (own, other), (here, there) = texts, matches
        at, known = array("i", (*here[:2], *there[:2])), rates.flat
        nodes, out = budget.nodes, self._out
        out.fit(nodes, (1 + nodes) * self._contexts * _MOST)
        count = calls("grow_").suffixes(
            *(own.address, other.address, at.buffer_info()[0], nodes, budget.depth),
            *(self._contexts, known.buffer_info()[0], out.numbers, out.chances),
        )
        if count < 0:
            raise MemoryError("no memory to grow a draft")
        return out.guess(count)


Mode = Literal["path", "tree", "blend"]

_OWN, _HISTORY = 0, 1

_length = itemgetter(1)  # of `Evidence`

# In the sequence's own text, and in the history.
_Place = tuple[Outlook, Outlook]

_NOWHERE: Outlook = (ROOT_STATE, 0, [])


class SuffixDecoding(HistoryDrafter):
    """Draft trees from the counts of what followed in the sequence and in earlier outputs."""

    name: ClassVar[str] = "suffix-decoding"

    def __init__(self, mode: Mode = "blend", capacity: int = CAPACITY) -> None:
        """Start with a history of `capacity` tokens. Raises InvalidOption."""
        if mode not in ("path", "tree", "blend"):
            raise InvalidOption(f"mode {mode!r} is unknown: use path, tree or blend")
        super().__init__(capacity)
        self._mode = mode
        self._native = NativeSuffixes(BLEND_CONTEXTS)

    def _start_rates(self, sources: int) -> HitRates:
        return evidence_rates(1.0, *[OTHER_SOURCE] * (sources - 1))

    def _guesses(self, own: SequenceText, budget: Budget) -> list[CandidateTree]:
        [reader] = own.readers
        draft = self._blend if self._mode == "blend" else self._best_context
        return [draft(own.text, own.text.match, reader.match, budget)]

    def _blend(self, text: Automaton, own: Match, other: Match, budget: Budget) -> CandidateTree:
        history = self.history.texts
        if isinstance(text, NativeAutomaton) and isinstance(history, NativeAutomaton):
            return self._native.grow((text, history), (own, other), budget, self._rates)

        def offers(place: _Place, reach: float) -> list[Offer]:
            (_, _, seen), (_, _, other) = place
            found: list[Evidence] = [(_OWN, *each) for each in seen]
            if other:
                found += [(_HISTORY, *each) for each in other]
                found.sort(key=_length, reverse=True)  # of equal ones the own text's first
            return weigh(found, self._rates.table, reach)

        def follow(place: _Place, token: int) -> _Place:
            own, other = place
            # Where the history no longer goes along, only single tokens could be found in it.
            there = history.outlook(*other[:2], token, BLEND_CONTEXTS) if other[0] else _NOWHERE
            return text.outlook(*own[:2], token, BLEND_CONTEXTS), there

        place = (
            text.outlook(*own[:2], None, BLEND_CONTEXTS),
            history.outlook(*other[:2], None, BLEND_CONTEXTS),
        )
        return CandidateTree.grow(place, budget, offers, follow)

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
