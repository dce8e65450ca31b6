"""The automaton in C++ is the one in Python, whatever is asked, and gives its memory back."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drafters.automata import KINDS, PlainAutomaton, built, seen

from paceline.drafters.suffix.automaton import ROOT_STATE, Automaton

Text = list[int]

SMALL = st.integers(1, 9).flatmap(
    lambda tokens: st.lists(st.lists(st.integers(0, tokens - 1), max_size=40), max_size=5)
)
DEPTHS = st.sampled_from([1, 2, 3, 5, 32])
TWINS = settings(max_examples=60)

PAGES = Path("/proc/self/statm")


@TWINS
@given(SMALL, DEPTHS, st.lists(st.integers(1, 20), min_size=1, max_size=9))
def test_both_know_the_same_after_every_piece(texts: list[Text], depth: int, pieces: Text) -> None:
    plain, native = PlainAutomaton(depth), Automaton(depth)
    for text in texts:
        begin = 0
        while begin < len(text):
            part = text[begin : begin + pieces[begin % len(pieces)]]
            plain.extend(part)
            native.extend(part)
            assert native.match == plain.match
            begin += len(part)
        assert seen(native) == seen(plain)
        plain.begin()
        native.begin()
        assert seen(native) == seen(plain)


@TWINS
@given(SMALL, SMALL, DEPTHS, st.integers(0, 5), st.data())
def test_both_read_and_look_ahead_alike(
    texts: list[Text], probes: list[Text], depth: int, most: int, data: st.DataObject
) -> None:
    plain, native = built(PlainAutomaton, texts, depth), built(Automaton, texts, depth)
    token = data.draw(st.one_of(st.none(), st.integers(0, 9)))
    for probe in probes:
        place = plain.read(ROOT_STATE, 0, probe)
        assert native.read(ROOT_STATE, 0, probe) == place
        state, length, _ = place
        assert native.outlook(state, length, token, most) == plain.outlook(
            state, length, token, most
        )
        assert native.follow(state, length, 1) == plain.follow(state, length, 1)
        assert native.read(state, 1, ()) == plain.read(state, 1, ())
        end = data.draw(st.integers(0, len(plain.log) - 1))
        assert native.behind(end, most) == plain.behind(end, most)


@pytest.mark.parametrize("kind", KINDS)
def test_one_token_more_is_seen(kind: type[Automaton]) -> None:
    """The comparison above can fail."""
    first, second = built(kind, [[1, 2, 1], [2]]), built(kind, [[1, 2, 1], [2]])
    assert seen(first) == seen(second)
    second.extend([1])
    assert seen(first) != seen(second)


def test_many_tokens_behind_one_context_are_all_found() -> None:
    """Tables grow, are split off, and are used again."""
    text = [t for i in range(3000) for t in (1, 2, 10 + i * 7919 % 100_003)]
    plain, native = (
        built(PlainAutomaton, [text, text[1:]]),
        built(Automaton, [text, text[1:]]),
    )
    for state in (native.step(ROOT_STATE, 2), native.read(ROOT_STATE, 0, [1, 2])[0], ROOT_STATE):
        found = [native.step(state, token) for token in text]
        assert found == [plain.step(state, token) for token in text]
        assert len(set(found)) > 2900
        assert native.followers(state) == plain.followers(state)


@pytest.mark.parametrize("tokens", [1, 2])
def test_a_million_tokens_of_a_tiny_alphabet_take_a_moment(tokens: int) -> None:
    """Work that grew with the repetition would go on for hours."""
    half = np.random.default_rng(0).integers(0, tokens, 500_000).tolist()
    text = [*half, *list(range(tokens)) * (500_000 // tokens)]
    automaton = built(Automaton, [text])
    assert len(automaton.count) <= 2 * len(text)
    assert automaton.match[1:] == (32, len(text) - tokens)
    assert automaton.count[automaton.step(ROOT_STATE, 0)] == text.count(0)


@pytest.mark.skipif(not PAGES.exists(), reason="needs Linux's figures of memory")
def test_memory_is_little_and_given_back() -> None:
    """Of text with the repetitions of language: a third is copied from before."""
    rng = np.random.default_rng(1)
    text = np.minimum(rng.zipf(1.2, 200_000), 49_151)
    for begin in range(3000, 200_000, 30):
        source = rng.integers(begin - 20)
        text[begin : begin + 10] = text[source : source + 10]
    tokens = text.tolist()
    page = os.sysconf("SC_PAGE_SIZE")

    def resident() -> int:
        return int(PAGES.read_text().split()[1]) * page

    before = resident()
    kept = built(Automaton, [tokens])
    assert resident() - before < 200 * len(tokens)
    before = resident()
    for _ in range(8):
        built(Automaton, [tokens])
    assert resident() - before < 2 * 60 * len(tokens)  # at least 60 bytes per token, eight times
    assert len(kept.log) == 1 + len(tokens)


def test_columns_keep_what_they_show() -> None:
    count = built(Automaton, [[1, 1]]).count
    assert list(count) == [0, 2, 1]
    with pytest.raises(IndexError, match="no state 3"):
        count[3]
