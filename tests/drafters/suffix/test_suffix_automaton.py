"""SAM-Decoding: the copy behind the longest match, from whichever source promises more."""

from __future__ import annotations

from itertools import cycle, islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.steps import step_of

from paceline.core.target import Output
from paceline.core.types import Budget, SamplingParams, TokenTree, Verdict
from paceline.drafters.candidates import alone, length_kind
from paceline.drafters.suffix.history import SuffixAutomaton
from paceline.sampling.generation import Generation

Text = list[int]

WIDE = Budget(8, 8)


def start(tokens: Text, id: int = 0) -> Generation:
    return Generation.start(id, tokens, SamplingParams())


def propose(drafter: SuffixAutomaton, sequence: Generation, budget: Budget = WIDE) -> TokenTree:
    [draft] = drafter.propose([sequence], [budget])
    return draft


def commit(drafter: SuffixAutomaton, sequence: Generation, new: Text) -> None:
    sequence.tokens += new
    output = Output(np.zeros((1, 4), np.float32))
    draft = TokenTree(np.zeros(0, np.int64), np.zeros(0, np.int64))
    drafter.observe(step_of([sequence], [draft], [Verdict((), new[-1])], [output]))


def naive_own(tokens: Text, count: int) -> tuple[int, Text]:
    """The longest suffix of up to 32 tokens that occurred before, and the loop behind it."""
    for n in range(min(32, len(tokens) - 1), 0, -1):
        for end in range(len(tokens) - 1, n - 1, -1):
            if tokens[end - n : end] == tokens[-n:]:
                return n, list(islice(cycle(tokens[end:]), count))
    return 0, []


def naive_other(tokens: Text, texts: list[Text], count: int) -> tuple[int, Text]:
    """The longest suffix of up to 32 tokens in other texts, and what follows its latest place."""
    for n in range(min(32, len(tokens)), 0, -1):
        for text in reversed(texts):
            for end in range(len(text), n - 1, -1):
                if text[end - n : end] == tokens[-n:]:
                    return n, text[end : end + count]
    return 0, []


def expected_accepted(length: int, copy: Text, trust: float) -> float:
    """Expected accepted tokens of a copy, before anything was learned."""
    kinds = [length_kind(length + depth) for depth in range(len(copy))]
    return float(np.cumprod(alone(trust)[kinds]).sum())


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=6),
    st.integers(0, 10),
    st.integers(0, 10),
)
def test_copies_from_the_own_text_equal_a_naive_search(
    prompt: Text, runs: list[Text], nodes: int, depth: int
) -> None:
    drafter = SuffixAutomaton()
    drafter.open(sequence := start(prompt))
    for run in [*runs, [0]]:
        draft = propose(drafter, sequence, Budget(nodes, depth))
        assert draft.tokens.tolist() == naive_own(sequence.tokens, min(nodes, depth))[1]
        commit(drafter, sequence, run)


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), max_size=3),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), max_size=3),
    st.lists(st.integers(0, 3), min_size=1, max_size=12),
)
def test_the_source_that_promises_more_is_drafted(
    outputs: list[Text], corpus: list[Text], prompt: Text
) -> None:
    drafter = SuffixAutomaton(corpus=corpus)
    for id, output in enumerate(outputs):
        drafter.open(ended := start([9], id))
        ended.tokens += output
        drafter.close(ended)
    texts = [[9, *output] for output in outputs]
    drafter.open(sequence := start(prompt, 50))
    draft = propose(drafter, sequence, WIDE)
    copies = [
        (*naive_own(prompt, 8), 1.0),
        (*naive_other(prompt, texts, 8), 0.6),
        (*naive_other(prompt, corpus, 8), 0.6),
    ]
    promises = [expected_accepted(*copy) for copy in copies]
    assert draft.scores is not None
    assert draft.scores.sum() == pytest.approx(max(promises))
    best = [copy[1] for copy, p in zip(copies, promises, strict=True) if p > max(promises) - 1e-9]
    assert draft.tokens.tolist() in best


def test_a_copy_from_elsewhere_ends_with_its_text() -> None:
    drafter = SuffixAutomaton(corpus=[[1, 2, 3], [4, 5, 6]])
    drafter.open(sequence := start([1, 2]))
    assert propose(drafter, sequence).tokens.tolist() == [3]


def test_matches_longer_than_any_n_gram_decide() -> None:
    """Where a bigram has two continuations, what stood before it tells them apart."""
    drafter = SuffixAutomaton()
    drafter.open(sequence := start([1, 7, 8, 9, 3, 2, 7, 8, 9, 4, 1, 7, 8, 9]))
    assert propose(drafter, sequence, Budget(1, 1)).tokens.tolist() == [3]


def test_the_history_stays_within_its_capacity() -> None:
    drafter = SuffixAutomaton(capacity=100)
    for id in range(30):
        drafter.open(sequence := start([1, 2], id))
        sequence.tokens += list(range(10 * id, 10 * id + 10))
        drafter.close(sequence)
        drafter.history.absorb()
        assert len(drafter.history.texts.log) <= 100
    drafter.open(sequence := start([292, 293], 99))
    assert propose(drafter, sequence).tokens.tolist() == [294, 295, 296, 297, 298, 299]
    drafter.open(sequence := start([2, 3], 98))
    assert len(propose(drafter, sequence)) == 0  # long forgotten


def test_the_corpus_outlives_a_reset() -> None:
    drafter = SuffixAutomaton(corpus=[[1, 2, 3]])
    drafter.reset()
    drafter.open(sequence := start([1, 2]))
    assert propose(drafter, sequence).tokens.tolist() == [3]
