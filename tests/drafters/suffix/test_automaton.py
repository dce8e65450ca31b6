"""The suffix automaton against a dictionary of all substrings."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drafters.automata import KINDS, PlainAutomaton, built

from paceline.drafters.suffix.automaton import BEST, BREAK, ROOT_STATE, Automaton

Text = list[int]

TEXTS = st.lists(st.lists(st.integers(0, 2), max_size=20), min_size=1, max_size=4)
DEPTHS = st.sampled_from([1, 2, 3, 5, 32])
FEWER = settings(max_examples=50)  # the references are slow
both = pytest.mark.parametrize("kind", KINDS)


def counts(texts: list[Text], depth: int) -> Counter[tuple[int, ...]]:
    """Every substring of up to `depth` tokens, with its number of occurrences."""
    return Counter(
        tuple(text[begin:end])
        for text in texts
        for begin in range(len(text))
        for end in range(begin + 1, min(len(text), begin + depth) + 1)
    )


def latest(log: Text, substring: tuple[int, ...]) -> int:
    """Index in the log of the last token of the latest occurrence."""
    n = len(substring)
    return max(end for end in range(n, len(log)) if tuple(log[end - n + 1 : end + 1]) == substring)


def state_of(automaton: Automaton, context: tuple[int, ...]) -> int:
    """The state reached from the root by the transitions of a context."""
    state = ROOT_STATE
    for token in context:
        state = automaton.step(state, token)
        if not state:
            return ROOT_STATE
    return state


@both
@FEWER
@given(TEXTS, DEPTHS)
def test_counts_and_latest_ends_are_those_of_all_substrings(
    kind: type[Automaton], texts: list[Text], depth: int
) -> None:
    automaton = built(kind, texts, depth)
    log = automaton.log.tolist()
    assert [token for token in log if token != BREAK] == [t for text in texts for t in text]
    for substring, count in counts(texts, depth).items():
        state, length = automaton.read(state_of(automaton, substring), len(substring), ())[:2]
        assert length == len(substring)
        assert automaton.count[state] == count
        assert automaton.end[state] == latest(log, substring)


@both
@FEWER
@given(TEXTS, st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_what_does_not_occur_is_not_found(
    kind: type[Automaton], texts: list[Text], probe: Text
) -> None:
    occurs = tuple(probe) in counts(texts, len(probe))
    assert bool(state_of(built(kind, texts), tuple(probe))) == occurs


@both
@FEWER
@given(TEXTS, DEPTHS)
def test_substrings_share_a_state_if_and_only_if_they_end_at_the_same_places(
    kind: type[Automaton], texts: list[Text], depth: int
) -> None:
    automaton = built(kind, texts, depth)
    log = automaton.log.tolist()
    ends: dict[int, set[tuple[int, ...]]] = {}
    for substring in counts(texts, depth):
        n = len(substring)
        places = tuple(
            e for e in range(len(log)) if tuple(log[max(0, e - n + 1) : e + 1]) == substring
        )
        found = automaton.read(state_of(automaton, substring), n, ())[0]
        ends.setdefault(found, set()).add(places)
    assert all(len(places) == 1 for places in ends.values())
    assert len(set().union(*ends.values(), set())) == len(ends)


@both
@FEWER
@given(st.lists(st.lists(st.integers(0, 7), max_size=30), min_size=1, max_size=3), DEPTHS)
def test_followers_are_the_most_frequent_and_latest(
    kind: type[Automaton], texts: list[Text], depth: int
) -> None:
    automaton = built(kind, texts, depth)
    log = automaton.log.tolist()
    known = counts(texts, depth + 1)
    for context in counts(texts, depth):
        times = {s[-1]: c for s, c in known.items() if s[:-1] == context}
        order = sorted(
            times.items(), key=lambda f: (f[1], latest(log, (*context, f[0]))), reverse=True
        )
        state, _ = automaton.read(state_of(automaton, context), len(context), ())[:2]
        assert automaton.followers(state) == order[:BEST]
        at_end = tuple(texts[-1][-len(context) :]) == context
        assert automaton.followed(state) == known[context] - at_end


@both
@FEWER
@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), DEPTHS)
def test_the_match_is_the_longest_suffix_that_occurred_before(
    kind: type[Automaton], text: Text, depth: int
) -> None:
    automaton = kind(depth)
    for end, token in enumerate(text, 1):
        automaton.extend([token])
        now, before = text[:end], text[: end - 1]
        lengths = [
            n
            for n in range(1, min(depth, end - 1) + 1)
            if any(before[i : i + n] == now[end - n :] for i in range(end - n))
        ]
        state, length, place = automaton.match
        assert length == max(lengths, default=0)
        if length:
            suffix = tuple(now[end - length :])
            assert place == latest([BREAK, *before], suffix)
            assert state == automaton.read(state_of(automaton, suffix), length, ())[:2][0]
        else:
            assert state == ROOT_STATE


@both
@FEWER
@given(TEXTS, st.lists(st.integers(0, 3), max_size=30), DEPTHS)
def test_following_a_text_finds_its_longest_known_suffix(
    kind: type[Automaton], texts: list[Text], probe: Text, depth: int
) -> None:
    automaton = built(kind, texts, depth)
    known = counts(texts, depth)
    state, length = ROOT_STATE, 0
    for end, token in enumerate(probe, 1):
        state, length = automaton.follow(state, length, token)
        lengths = [n for n in range(1, end + 1) if tuple(probe[end - n : end]) in known]
        assert length == max(lengths, default=0)
        if length:
            expected = state_of(automaton, tuple(probe[end - length : end]))
            assert state == automaton.read(expected, length, ())[0]


@both
@FEWER
@given(TEXTS, TEXTS, DEPTHS)
def test_contexts_stay_valid_while_texts_are_appended(
    kind: type[Automaton], texts: list[Text], later: list[Text], depth: int
) -> None:
    automaton = built(kind, texts, depth)
    contexts = list(counts(texts, depth))
    kept = [automaton.read(state_of(automaton, c), len(c), ())[:2] for c in contexts]
    for text in later:
        automaton.begin()
        automaton.extend(text)
    known = counts([*texts, *later], depth)
    for context, (state, length) in zip(contexts, kept, strict=True):
        assert automaton.count[automaton.read(state, length, ())[0]] == known[context]


@both
@FEWER
@given(TEXTS)
def test_backing_off_visits_every_count_of_the_suffixes(
    kind: type[Automaton], texts: list[Text]
) -> None:
    automaton = built(kind, texts)
    known = counts(texts, 32)
    text = tuple(texts[-1])
    expected = {(n, known[text[-n:]]) for n in range(1, len(text) + 1)}
    state = state_of(automaton, text)
    length = len(text)
    visited = set()
    while state:
        shorter, below = automaton.back_off(state)
        visited |= {(n, automaton.count[state]) for n in range(below + 1, length + 1)}
        state, length = shorter, below
    assert visited == expected


@both
@pytest.mark.parametrize("text", [[1] * 400, [1, 2] * 200, list(range(400)), [1, 2, 3, 1] * 100])
def test_the_number_of_states_is_linear(kind: type[Automaton], text: Text) -> None:
    automaton = built(kind, [text, text[::-1], text])
    assert len(automaton.count) <= 2 * 3 * len(text)


class Counted(dict[int, list[int]]):
    """A dictionary that counts look-ups."""

    uses = 0

    def get(self, *args: object) -> list[int] | None:  # type: ignore[override]  # one signature
        Counted.uses += 1
        return super().get(*args)  # type: ignore[call-overload, no-any-return]  # passed through


def test_a_token_costs_no_more_in_a_long_repetition() -> None:
    automaton = PlainAutomaton(depth=16)
    automaton.extend([1] * 2000)
    automaton._ranked = Counted(automaton._ranked)
    Counted.uses = 0
    automaton.extend([1] * 50)
    assert Counted.uses == 50 * 17
