"""The blend of two automata in C++ is the one in Python to the last bit."""

from __future__ import annotations

from operator import itemgetter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drafters.automata import KINDS, PlainAutomaton, built

from paceline.core.types import Budget
from paceline.drafters.candidates import Evidence, weigh
from paceline.drafters.suffix.automaton import ROOT_STATE, Automaton, Match, Outlook
from paceline.methods.suffix_decoding import SuffixDecoding
from paceline.policy.constants import BLEND_CONTEXTS
from paceline.trees.candidates import CandidateTree, Offer

TEXT = st.integers(1, 7).flatmap(
    lambda tokens: st.lists(st.integers(0, tokens - 1), min_size=1, max_size=60)
)


def blended(
    drafter: SuffixDecoding, text: Automaton, other: Match, budget: Budget
) -> CandidateTree:
    """The reference of `SuffixDecoding._blend`."""
    history = drafter.history.texts

    def offers(place: tuple[Outlook, Outlook], reach: float) -> list[Offer]:
        (_, _, seen), (_, _, other) = place
        found: list[Evidence] = [(0, *each) for each in seen]
        if other:
            found += [(1, *each) for each in other]
            found.sort(key=itemgetter(1), reverse=True)  # of equal ones the own text's first
        return weigh(found, drafter._rates.table, reach)

    def follow(place: tuple[Outlook, Outlook], token: int) -> tuple[Outlook, Outlook]:
        own, other = place
        # Where the history no longer goes along, only single tokens could be found in it.
        there = (ROOT_STATE, 0, [])
        if other[0]:
            there = history.outlook(*other[:2], token, BLEND_CONTEXTS)
        return text.outlook(*own[:2], token, BLEND_CONTEXTS), there

    place = (
        text.outlook(*text.match[:2], None, BLEND_CONTEXTS),
        history.outlook(*other[:2], None, BLEND_CONTEXTS),
    )
    return CandidateTree.grow(place, budget, offers, follow)


def drafted(
    kind: type[Automaton], text: list[int], others: list[list[int]], budget: Budget, seed: int
) -> tuple[CandidateTree, SuffixDecoding]:
    """What is blended of texts, with some hit rates; and who did."""
    drafter = SuffixDecoding()
    own, drafter.history.texts = built(kind, [text]), built(kind, others)
    match = drafter.history.texts.read(0, 0, text)
    for cell in np.random.default_rng(seed).integers(126, size=60).tolist():
        drafter._rates.count(cell, cell % 3 == 0)
    if kind is PlainAutomaton:
        return blended(drafter, own, match, budget), drafter
    return drafter._blend(own, own.match, match, budget), drafter


@settings(max_examples=120)
@given(
    TEXT,
    st.lists(TEXT, max_size=3),
    st.integers(0, 20),
    st.integers(0, 9),
    st.integers(0, 99),
    TEXT,
)
def test_both_draft_and_learn_alike(
    text: list[int],
    others: list[list[int]],
    nodes: int,
    depth: int,
    seed: int,
    committed: list[int],
) -> None:
    seen = []
    for kind in KINDS:
        guess, drafter = drafted(kind, text, others, Budget(nodes, depth), seed)
        guess.learn([*guess.tokens[:1], *committed], drafter._rates)
        seen.append((guess.tokens, guess.parents, guess.scores, drafter._rates.table))
    assert seen[1] == seen[0]


def test_another_history_is_seen() -> None:
    """The comparison above can fail."""
    budget = Budget(6, 3)
    first, _ = drafted(Automaton, [1, 2, 3, 1, 2], [[2, 5]], budget, 0)
    second, _ = drafted(Automaton, [1, 2, 3, 1, 2], [[2, 6]], budget, 0)
    assert first.tokens != second.tokens
