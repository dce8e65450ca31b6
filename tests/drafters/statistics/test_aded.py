"""ADED: tri-grams, their adaptation to the text, and its two searches."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.core.target import Output
from paceline.core.types import Budget, SamplingParams, TokenTree, Verdict
from paceline.drafters.statistics.aded import Aded
from paceline.sampling.sequence import Sequence


def start(tokens: list[int], id: int = 0) -> Sequence:
    return Sequence.start(id, tokens, SamplingParams())


def first(drafter: Aded, tokens: list[int]) -> int:
    """The most likely next token."""
    drafter.open(sequence := start(tokens, id=9))
    [draft] = drafter.propose([sequence], [Budget(1, 1)])
    drafter.close(sequence)
    return int(draft.tokens[0])


def say(drafter: Aded, prompt: list[int], token: int, logits: dict[int, float]) -> None:
    """One plain step whose law has the given logits, and -9 elsewhere."""
    drafter.open(sequence := start(prompt))
    [draft] = drafter.propose([sequence], [Budget(1, 1)])
    row = np.full((1, 60), -9.0, np.float32)
    row[0, list(logits)] = list(logits.values())
    sequence.tokens.append(token)
    drafter.observe([sequence], [draft], [Verdict((), token)], [Output(row)])
    drafter.close(sequence)


def test_two_tokens_of_context_come_before_one() -> None:
    drafter = Aded()
    say(drafter, [1, 2], 5, {5: 3.0})
    say(drafter, [3, 2], 6, {6: 3.0})
    assert first(drafter, [1, 2]) == 5
    assert first(drafter, [3, 2]) == 6
    assert first(drafter, [4, 2]) in (5, 6)


def test_statistics_adapt_to_what_was_committed() -> None:
    """A token that was drawn against the odds is expected again."""
    drafter = Aded()
    say(drafter, [1, 2], 7, {5: 3.0, 6: 2.0, 7: 1.0})
    assert first(drafter, [1, 2]) == 7


@pytest.mark.parametrize("search", ["best-first", "puct"])
def test_laws_of_rejected_nodes_are_used(search: str) -> None:
    drafter = Aded("puct") if search == "puct" else Aded()
    drafter.open(sequence := start([1, 2]))
    drafter.propose([sequence], [Budget(1, 1)])
    draft = TokenTree(np.array([30]), np.array([-1]))
    logits = np.zeros((2, 60), np.float32)
    logits[0, 8] = logits[1, 9] = 20.0
    sequence.tokens.append(8)
    drafter.observe([sequence], [draft], [Verdict((), 8)], [Output(logits)])
    assert first(drafter, [2, 30]) == 9


def draft_by(drafter: Aded) -> TokenTree:
    text = np.random.default_rng(4).integers(0, 6, 200).tolist()
    drafter.open(sequence := start(text))
    [draft] = drafter.propose([sequence], [Budget(8, 4)])
    return draft


def test_best_first_promises_no_less_than_the_published_search() -> None:
    best, searched, again = draft_by(Aded()), draft_by(Aded("puct")), draft_by(Aded("puct"))
    assert best.scores is not None
    assert searched.scores is not None
    assert best.scores.sum() >= searched.scores.sum() - 1e-12
    assert searched.scores.sum() > 0.7 * best.scores.sum()
    np.testing.assert_array_equal(searched.tokens, again.tokens)  # no draws are involved
