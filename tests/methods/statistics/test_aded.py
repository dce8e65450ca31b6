"""ADED, our variant: tri-grams and their adaptation to the text."""

from __future__ import annotations

import numpy as np
from tests.helpers.steps import step_of

from paceline.core.target import Output
from paceline.core.types import Budget, SamplingParams, TokenTree, Verdict
from paceline.methods.statistics.aded import Aded
from paceline.sampling.generation import Generation


def start(tokens: list[int], id: int = 0) -> Generation:
    return Generation.start(id, tokens, SamplingParams())


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
    drafter.observe(step_of([sequence], [draft], [Verdict((), token)], [Output(row)]))
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


def test_laws_of_rejected_nodes_are_used() -> None:
    drafter = Aded()
    drafter.open(sequence := start([1, 2]))
    drafter.propose([sequence], [Budget(1, 1)])
    draft = TokenTree(np.array([30]), np.array([-1]))
    logits = np.zeros((2, 60), np.float32)
    logits[0, 8] = logits[1, 9] = 20.0
    sequence.tokens.append(8)
    drafter.observe(step_of([sequence], [draft], [Verdict((), 8)], [Output(logits)]))
    assert first(drafter, [2, 30]) == 9
