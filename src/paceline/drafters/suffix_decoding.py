"""SuffixDecoding (Oliaro et al. 2024, arXiv:2411.04975): trees from the counts of what followed.

Two sources are searched for the end of the sequence: its own text, and the outputs of sequences
that ended (`History`). Both are suffix automata with counts, which hold the counts of the paper's
suffix trees, for contexts of up to 32 tokens instead of 64: longer ones are no better.

Modes "path" and "tree" draft as published from one context in one source: of all lengths of
context in both, the one whose draft has the highest score, which is the expected number of
accepted tokens. A path follows the most frequent continuation, a tree has several. Mode "blend",
the default, is an addition: it lets contexts of several lengths from both sources offer tokens for
the same tree, the longer ones first, each for the cases in which those before it fail (as
prediction by partial matching does). The paper estimates acceptance by raw shares of counts and
curbs short contexts by a factor; here hit rates learned per kind of evidence stand for both.
"""

from __future__ import annotations

from operator import itemgetter
from typing import ClassVar, Literal

from paceline.drafters.automaton import ROOT_STATE, Automaton, Match, Outlook
from paceline.drafters.best_first import Guess, Offer
from paceline.drafters.evidence import TRUST, Evidence, evidence_rates, weigh
from paceline.drafters.history import CAPACITY
from paceline.drafters.native_automaton import NativeAutomaton
from paceline.drafters.native_suffixes import NativeSuffixes
from paceline.drafters.recalling import Own, RecallingDrafter
from paceline.drafters.statistics import HitRates
from paceline.errors import InvalidOption
from paceline.types import Budget

Mode = Literal["path", "tree", "blend"]

_OWN, _HISTORY = 0, 1

_LEVELS = 2
"""Lengths of context per source that offer tokens for one node of a blend."""

_CONTEXTS = 8
"""Longest contexts per source that are tried in modes "path" and "tree"."""

_length = itemgetter(1)  # of `Evidence`

_Place = tuple[Outlook, Outlook]
"""In the sequence's own text, and in the history."""

_NOWHERE: Outlook = (ROOT_STATE, 0, [])


class SuffixDecoding(RecallingDrafter):
    """Trees from the counts of what followed in the sequence and in earlier outputs."""

    name: ClassVar[str] = "suffix-decoding"

    def __init__(self, mode: Mode = "blend", capacity: int = CAPACITY) -> None:
        """Start with an empty history.

        Args:
            mode: see the module.
            capacity: tokens of ended sequences to keep.

        Raises:
            InvalidOption: an unknown mode, or too small a capacity.
        """
        if mode not in ("path", "tree", "blend"):
            raise InvalidOption(f"mode {mode!r} is unknown: use path, tree or blend")
        super().__init__(capacity)
        self._mode = mode
        self._native = NativeSuffixes(_LEVELS)

    def _start_rates(self, sources: int) -> HitRates:
        return evidence_rates(1.0, *[TRUST] * (sources - 1))

    def _guesses(self, own: Own, budget: Budget) -> list[Guess]:
        [reader] = own.readers
        draft = self._blend if self._mode == "blend" else self._best_context
        return [draft(own.text, own.text.match, reader.match, budget)]

    def _blend(self, text: Automaton, own: Match, other: Match, budget: Budget) -> Guess:
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
            behind = history.outlook(*other[:2], token, _LEVELS) if other[0] else _NOWHERE
            return text.outlook(*own[:2], token, _LEVELS), behind

        place = (
            text.outlook(*own[:2], None, _LEVELS),
            history.outlook(*other[:2], None, _LEVELS),
        )
        return Guess.grow(place, budget, offers, follow)

    def _best_context(self, text: Automaton, own: Match, other: Match, budget: Budget) -> Guess:
        best = Guess()
        sources = ((_OWN, text, *own[:2]), (_HISTORY, self.history.texts, *other[:2]))
        for source, automaton, state, length in sources:
            for _ in range(_CONTEXTS):
                if not state:
                    break
                guess = self._from_context(source, automaton, (state, length), budget)
                if guess.score > best.score:  # equal scores: the own text, and the longer match
                    best = guess
                state, length = automaton.back_off(state)
        return best

    def _from_context(
        self, source: int, automaton: Automaton, context: tuple[int, int], budget: Budget
    ) -> Guess:
        width = 1 if self._mode == "path" else None

        def offers(place: tuple[int, int], reach: float) -> list[Offer]:
            state, length = place
            followers = automaton.followers(state)[:width]
            found = (source, length, automaton.followed(state), followers)
            return weigh([found], self._rates.table, reach)

        def follow(place: tuple[int, int], token: int) -> tuple[int, int]:
            return automaton.follow(*place, token)

        return Guess.grow(context, budget, offers, follow)
