"""Prompt lookup against a naive search, and what it learns about its own guesses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.steps import step_of

from paceline.core import tree as trees
from paceline.core.target import Output
from paceline.core.types import Budget, SamplingParams, TokenTree, Verdict
from paceline.methods.prompt_lookup import PromptLookup
from paceline.sampling.generation import Generation

WIDE = Budget(12, 12)


def start(tokens: list[int], id: int = 0) -> Generation:
    return Generation.start(id, tokens, SamplingParams())


def opened(
    tokens: list[int], drafter: PromptLookup | None = None
) -> tuple[PromptLookup, Generation]:
    drafter = drafter or PromptLookup()
    sequence = start(tokens)
    drafter.open(sequence)
    return drafter, sequence


def propose(drafter: PromptLookup, sequence: Generation, budget: Budget = WIDE) -> TokenTree:
    [draft] = drafter.propose([sequence], [budget])
    return draft


def commit(drafter: PromptLookup, sequence: Generation, draft: TokenTree, new: list[int]) -> None:
    """What the decoder does after a step; the drafter looks at committed tokens alone."""
    sequence.tokens += new
    output = Output(np.zeros((1 + len(draft), 4), np.float32))
    drafter.observe(step_of([sequence], [draft], [Verdict((), new[-1])], [output]))


def naive(tokens: list[int], count: int) -> list[int]:
    """The most recent earlier occurrence of the longest n-gram, n = 3 to 1, then a copy."""
    for n in (3, 2, 1):
        for end in range(len(tokens) - 1, n - 1, -1):
            if tokens[end - n : end] == tokens[-n:]:
                copy = tokens[end:]
                while len(copy) < count:
                    copy = copy + tokens[end:]
                return copy[:count]
    return []


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), max_size=8),
    st.integers(0, 14),
    st.integers(0, 14),
)
def test_drafts_equal_those_of_a_naive_search(
    prompt: list[int], runs: list[list[int]], nodes: int, depth: int
) -> None:
    drafter, sequence = opened(prompt)
    for run in [*runs, [0]]:
        draft = propose(drafter, sequence, Budget(nodes, depth))
        assert draft.tokens.tolist() == naive(sequence.tokens, min(nodes, depth))
        assert draft.sampling is None
        assert draft.scores is not None
        assert draft.scores.shape == draft.tokens.shape
        assert trees.is_chain(draft)
        assert draft.source == "prompt-lookup"
        commit(drafter, sequence, draft, run)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=30), st.data())
def test_scores_are_probabilities_that_never_increase(
    prompt: list[int], data: st.DataObject
) -> None:
    drafter, sequence = opened(prompt)
    for _ in range(6):
        draft = propose(drafter, sequence)
        assert draft.scores is not None
        assert np.all((draft.scores > 0) & (draft.scores <= 1))
        assert np.all(np.diff(draft.scores) <= 0)
        commit(drafter, sequence, draft, data.draw(st.lists(st.integers(0, 2), min_size=1)))


def test_a_copy_that_reaches_the_end_goes_on_as_a_loop() -> None:
    drafter, sequence = opened([9, 1, 2, 1, 2])
    assert propose(drafter, sequence, Budget(5, 5)).tokens.tolist() == [1, 2, 1, 2, 1]


def test_longer_matches_win_over_later_ones() -> None:
    drafter, sequence = opened([1, 2, 3, 7, 9, 3, 8, 1, 2, 3])
    assert propose(drafter, sequence, Budget(1, 1)).tokens.tolist() == [7]


def test_a_new_last_token_has_no_draft() -> None:
    drafter, sequence = opened([1, 2, 1, 3])
    draft = propose(drafter, sequence)
    assert len(draft) == 0
    commit(drafter, sequence, draft, [1])
    assert propose(drafter, sequence, Budget(1, 1)).tokens.tolist() == [3]


def score(drafter: PromptLookup) -> float:
    """What the drafter thinks of the fourth token of a copy after a match of three."""
    drafter.open(sequence := start([1, 2, 3, 4, 5, 6, 7, 1, 2, 3], id=99))
    [draft] = drafter.propose([sequence], [Budget(4, 4)])
    drafter.close(sequence)
    assert draft.scores is not None
    return float(draft.scores[-1])


def test_a_perfect_copy_drives_scores_up() -> None:
    drafter = PromptLookup()
    before = score(drafter)
    text = list(range(20, 60))
    drafter, sequence = opened(text + text[:3], drafter)
    for i in range(3, 39, 4):
        draft = propose(drafter, sequence, Budget(4, 4))
        commit(drafter, sequence, draft, text[i : i + 4])
    assert score(drafter) > before


def test_broken_copies_drive_scores_down_and_reset_forgets() -> None:
    drafter = PromptLookup()
    before = score(drafter)
    drafter, sequence = opened([1, 2, 3, 4, 5], drafter)
    for token in range(100, 140):  # every match of three goes on in a new way
        commit(drafter, sequence, propose(drafter, sequence), [token, 1, 2, 3])
    assert score(drafter) < 0.2 * before
    drafter.reset()
    assert score(drafter) == before


def test_guesses_that_were_not_verified_are_scored_too() -> None:
    """The controller may verify nothing for a while; scores must still recover."""
    drafter, sequence = opened([1, 2, 3, 4] * 3)
    for _ in range(10):
        propose(drafter, sequence)
        commit(drafter, sequence, trees.EMPTY, [sequence.tokens[-4]])
    draft = propose(drafter, sequence)
    assert draft.scores is not None
    first = PromptLookup()
    first.open(fresh := start(list(sequence.tokens)))
    [unlearned] = first.propose([fresh], [WIDE])
    assert unlearned.scores is not None
    assert draft.scores[0] > unlearned.scores[0]


def test_what_follows_a_miss_is_not_scored() -> None:
    """Only the first wrong guess was refuted; those behind it stood on a wrong path."""
    scores = []
    for tail in ([9], [9, 4, 5]):
        drafter, sequence = opened([1, 2, 3, 4, 5, 6, 1, 2])
        draft = propose(drafter, sequence, Budget(4, 4))
        assert draft.tokens.tolist() == [3, 4, 5, 6]
        commit(drafter, sequence, draft, tail)
        scores.append(drafter._model.rates.rates)
    np.testing.assert_array_equal(scores[0], scores[1])


class Counted(dict[tuple[int, ...], int]):
    """A dictionary that counts how often it is used."""

    uses = 0

    def __setitem__(self, key: tuple[int, ...], value: int) -> None:
        Counted.uses += 1
        super().__setitem__(key, value)

    def get(self, *args: object) -> int | None:  # type: ignore[override]  # one signature is enough
        Counted.uses += 1
        return super().get(*args)  # type: ignore[call-overload, no-any-return]  # passed through


@pytest.mark.parametrize("length", [10, 1000])
def test_the_cost_of_a_token_does_not_grow_with_the_text(length: int) -> None:
    drafter, sequence = opened(np.random.default_rng(0).integers(0, 50, length).tolist())
    index = drafter._indices[0]
    index._after = Counted(index._after)
    Counted.uses = 0
    for token in range(20):
        commit(drafter, sequence, propose(drafter, sequence), [token])
    assert 20 * 3 <= Counted.uses <= 20 * 6  # three n-grams written and at most three looked up


def test_sequences_do_not_mix_and_close_drops_their_state() -> None:
    drafter = PromptLookup()
    one, other = start([1, 2, 1], id=0), start([1, 5, 1], id=1)
    drafter.open(one)
    drafter.open(other)
    a, b = drafter.propose([one, other], [Budget(1, 1)] * 2)
    assert (a.tokens.tolist(), b.tokens.tolist()) == ([2], [5])
    drafter.close(one)
    drafter.close(one)  # closing twice is harmless
    assert set(drafter._indices) == set(drafter._guesses) == {1}
    [again] = drafter.propose([other], [Budget(1, 1)])
    assert again.tokens.tolist() == [5]
    drafter.close(other)
    assert not drafter._indices
    assert not drafter._guesses
