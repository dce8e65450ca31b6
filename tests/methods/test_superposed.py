"""Superposed decoding on tables: its limits, its count of forwards, its n-grams."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.target import Output, Rows
from paceline.core.types import LogitArray
from paceline.methods.superposed import MISS, NGrams, superpose, weights
from paceline.proof.tabular import TabularCache, TabularModel, TabularTarget

VOCABULARY = 9
MODEL = TabularModel(VOCABULARY, 2, seed=8, sharpness=2.0)
PROMPT = [1, 4, 2]


class Superposed(TabularTarget):
    """Takes the weighted mean of logits for the logits of a weighted mean, and counts."""

    def __init__(self) -> None:
        super().__init__(MODEL.logits, VOCABULARY)
        self.forwards = 0
        self.given: list[tuple[list[int], list[float]]] = []
        self.live = 0

    def open(self) -> TabularCache:
        self.live += 1
        return super().open()

    def release(self, cache: TabularCache) -> None:
        super().release(cache)
        self.live -= 1

    def forward(self, passes: Sequence[Rows]) -> list[Output]:
        self.forwards += 1
        return super().forward(passes)

    def forward_superposed(
        self, cache: TabularCache, tokens: Sequence[int], weights: Sequence[float]
    ) -> LogitArray:
        self.forwards += 1
        self.given.append((list(tokens), list(weights)))
        rows = [MODEL.logits((*cache.tokens, token)) for token in tokens]
        cache.tokens.append(tokens[0])
        mean: LogitArray = np.average(rows, axis=0, weights=weights).astype(np.float32)
        return mean


def greedy(length: int, end: int | None = None) -> tuple[int, ...]:
    tokens = list(PROMPT)
    while len(tokens) < len(PROMPT) + length and tokens[-1] != end:
        tokens.append(int(MODEL.logits(tuple(tokens)).argmax()))
    return tuple(tokens[len(PROMPT) :])


def test_one_draft_without_n_grams_is_greedy_text() -> None:
    [draft], forwards = superpose(Superposed(), PROMPT, 1, 12)
    assert draft.tokens == greedy(12)
    assert forwards == 12


@pytest.mark.parametrize("k", [1, 2, 3, 9])
@pytest.mark.parametrize("alpha", [0.0, 0.4])
def test_forwards_weights_and_order(k: int, alpha: float) -> None:
    target = Superposed()
    ngrams = NGrams([[1, 4, 2, 5, 4, 2, 6]]) if alpha else None
    drafts, forwards = superpose(target, PROMPT, k, 7, ngrams=ngrams, alpha=alpha)
    assert target.forwards == forwards == 7
    assert target.live == 0
    assert len(drafts) == len({draft.tokens for draft in drafts}) == k
    assert [len(draft.tokens) for draft in drafts] == [7] * k
    scores = [draft.score for draft in drafts]
    assert scores == sorted(scores, reverse=True)
    for tokens, shares in target.given:
        assert len(tokens) == len(shares) == k
        assert sum(shares) == pytest.approx(1)
        assert shares == sorted(shares, reverse=True)


def test_the_first_tokens_are_the_most_probable_ones() -> None:
    drafts, _ = superpose(Superposed(), PROMPT, 3, 1)
    logits = MODEL.logits(tuple(PROMPT)).astype(float)
    best = np.argsort(-logits)[:3]
    assert [draft.tokens for draft in drafts] == [(int(token),) for token in best]
    distribution = np.exp(logits) / np.exp(logits).sum()
    assert [draft.score for draft in drafts] == pytest.approx(np.log(distribution[best]))
    assert weights(drafts) == pytest.approx(distribution[best] / distribution[best].sum())


def test_n_grams_tell_drafts_apart() -> None:
    plain, _ = superpose(Superposed(), PROMPT, 3, 2)
    rare = plain[-1].tokens[0]
    known = NGrams([[*PROMPT, rare, 7]])
    guided, _ = superpose(Superposed(), PROMPT, 3, 2, ngrams=known, alpha=0.5)
    assert guided[0].tokens[0] == rare
    assert plain[0].tokens[0] != rare


def test_ended_drafts_stay_and_a_full_end_stops_early() -> None:
    end = greedy(5)[2]
    [draft], forwards = superpose(Superposed(), PROMPT, 1, 12, end=[end])
    assert draft.tokens == greedy(12, end)
    assert draft.ended
    assert forwards == len(draft.tokens) < 12
    drafts, _ = superpose(Superposed(), PROMPT, 4, 6, end=[end])
    for each in drafts:
        assert each.ended == (each.tokens[-1] == end)
        assert end not in each.tokens[:-1]
        assert each.ended or len(each.tokens) == 6
    assert {each.ended for each in drafts} == {True, False}


Texts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=1, max_size=3)


@settings(max_examples=150)
@given(Texts, st.lists(st.integers(0, 3), min_size=1, max_size=7), st.integers(0, 3))
def test_n_grams_against_plain_counting(
    texts: list[list[int]], prompt: list[int], token: int
) -> None:
    depth = 4

    def places(part: list[int]) -> list[tuple[int, int]]:
        """Where a part ends: text and index."""
        size = len(part)
        return [
            (n, end)
            for n, text in enumerate(texts)
            for end in range(size, len(text) + 1)
            if text[end - size : end] == part
        ]

    last = (len(texts) - 1, len(texts[-1]))
    expected, discount, seen = -MISS, 0.0, None
    for size in range(min(depth, len(prompt)), 0, -1):
        context = prompt[len(prompt) - size :]
        ends = places(context)
        if not ends:
            continue
        if seen is not None and len(ends) > len(seen):
            discount += math.log(0.4)
        seen = ends
        after = len(places([*context, token]))
        if after:
            expected = discount + math.log(after / (len(ends) - (last in ends)))
            break
    ngrams = NGrams(texts, depth)
    assert ngrams.logprob(ngrams.context(prompt), token) == pytest.approx(expected)
