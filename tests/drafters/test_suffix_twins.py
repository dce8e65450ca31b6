"""The blend of two automata in C++ is the one in Python to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drafters.automata import NATIVE, built

from paceline.core.types import Budget
from paceline.drafters.suffix.automaton import NativeAutomaton, PlainAutomaton
from paceline.drafters.suffix.suffix_decoding import SuffixDecoding
from paceline.trees.candidates import CandidateTree

pytestmark = pytest.mark.skipif(not NATIVE, reason="needs a C++ compiler")

TEXT = st.integers(1, 7).flatmap(
    lambda tokens: st.lists(st.integers(0, tokens - 1), min_size=1, max_size=60)
)


def drafted(
    kind: type[PlainAutomaton | NativeAutomaton],
    text: list[int],
    others: list[list[int]],
    budget: Budget,
    seed: int,
) -> tuple[CandidateTree, SuffixDecoding]:
    """What is blended of texts, with some hit rates; and who did."""
    drafter = SuffixDecoding()
    own, drafter.history.texts = built(kind, [text]), built(kind, others)
    match = drafter.history.texts.read(0, 0, text)
    for cell in np.random.default_rng(seed).integers(126, size=60).tolist():
        drafter._rates.count(cell, cell % 3 == 0)
    return drafter._blend(own, own.match, match, budget), drafter


@settings(max_examples=120, deadline=None)
@given(
    *(TEXT, st.lists(TEXT, max_size=3), st.integers(0, 20), st.integers(0, 9)),
    *(st.integers(0, 99), TEXT),
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
    for kind in (PlainAutomaton, NativeAutomaton):
        guess, drafter = drafted(kind, text, others, Budget(nodes, depth), seed)
        guess.learn([*guess.tokens[:1], *committed], drafter._rates)
        seen.append((guess.tokens, guess.parents, guess.scores, drafter._rates.table))
    assert seen[1] == seen[0]


def test_another_history_is_seen() -> None:
    """The comparison above can fail."""
    budget = Budget(6, 3)
    first, _ = drafted(NativeAutomaton, [1, 2, 3, 1, 2], [[2, 5]], budget, 0)
    second, _ = drafted(NativeAutomaton, [1, 2, 3, 1, 2], [[2, 6]], budget, 0)
    assert first.tokens != second.tokens
