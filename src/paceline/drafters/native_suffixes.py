"""Tree expansion of `SuffixDecoding` in C++ (`native/suffixes.hpp`): a draft in one call."""

from __future__ import annotations

from array import array

from paceline.drafters.automaton import BEST, Match
from paceline.drafters.best_first import Guess
from paceline.drafters.native_automaton import NativeAutomaton
from paceline.drafters.native_guess import Workspace
from paceline.drafters.statistics import HitRates
from paceline.native.library import calls
from paceline.types import Budget

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
    ) -> Guess:
        """Expand the likeliest nodes after both contexts. MemoryError: no room for them."""
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
