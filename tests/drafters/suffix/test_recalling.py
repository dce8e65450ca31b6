"""Drafters that recall texts read nothing before somebody asks for a draft, and then all of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.steps import step_of

from paceline.core.target import Output
from paceline.core.types import Budget, SamplingParams, TokenTree, Verdict
from paceline.drafters.suffix import history as recalling
from paceline.drafters.suffix.history import HistoryDrafter, SuffixAutomaton
from paceline.methods.input_guided import InputGuided
from paceline.methods.suffix_decoding import SuffixDecoding
from paceline.sampling.generation import Generation

Text = list[int]

NONE, SOME = Budget(0, 0), Budget(6, 4)

RECALLING = pytest.mark.parametrize("make", [SuffixAutomaton, SuffixDecoding])


def start(tokens: Text, id: int = 0) -> Generation:
    return Generation.start(id, tokens, SamplingParams())


def step(
    drafter: HistoryDrafter | InputGuided, sequence: Generation, budget: Budget, new: Text
) -> TokenTree:
    """Propose, and commit something."""
    [draft] = drafter.propose([sequence], [budget])
    sequence.tokens += new
    output = Output(np.zeros((1, 4), np.float32))
    drafter.observe(step_of([sequence], [draft], [Verdict((), new[-1])], [output]))
    return draft


def read(*others: object) -> None:
    """Stands in for `SequenceText`."""
    raise AssertionError("somebody asked for a draft")


@RECALLING
def test_sequences_that_are_never_asked_are_never_read(
    make: type[HistoryDrafter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recalling, "SequenceText", read)
    drafter = make()
    for id in range(200):
        drafter.open(sequence := start([1, 2, 3], id))
        for token in range(20):
            assert len(step(drafter, sequence, NONE, [token])) == 0
        drafter.close(sequence)
    assert len(drafter.history.texts.log) == 1  # the first break
    assert drafter.history.waiting == 200 * 23
    drafter.open(sequence := start([1, 2, 3], 999))
    with pytest.raises(AssertionError, match="asked"):
        drafter.propose([sequence], [SOME])
    assert drafter.history.waiting == 0


@pytest.mark.parametrize("make", [SuffixAutomaton, SuffixDecoding, InputGuided])
@settings(max_examples=40)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), min_size=1, max_size=3),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=8),
    st.data(),
)
def test_a_draft_is_the_same_whoever_was_asked_before(
    make: type[HistoryDrafter], prompts: list[Text], runs: list[Text], data: st.DataObject
) -> None:
    """Of one drafter that is asked at every step but learns no hit rates, and one that is asked
    now and then."""
    often, seldom = make(), make()
    for drafter in (often, seldom):
        rates = drafter._model.rates if isinstance(drafter, InputGuided) else drafter._rates
        rates.count = lambda place, hit: None  # type: ignore[method-assign]  # as said
    for id, prompt in enumerate(prompts):
        first, second = start(prompt, id), start(prompt, id)
        often.open(first)
        seldom.open(second)
        for run in runs:
            ask = data.draw(st.booleans())
            one = step(often, first, SOME, run)
            other = step(seldom, second, SOME if ask else NONE, run)
            if ask:
                assert other.tokens.tolist() == one.tokens.tolist()
                assert other.parents.tolist() == one.parents.tolist()
            else:
                assert len(other) == 0
        often.close(first)
        seldom.close(second)


@RECALLING
def test_what_ended_is_read_at_the_pace_of_steps_though_nobody_asks(
    make: type[HistoryDrafter],
) -> None:
    drafter = make()
    drafter.open(running := start([1], 0))
    drafter.open(ended := start([2], 1))
    ended.tokens += list(range(100, 140))
    drafter.close(ended)
    for token in range(3):
        step(drafter, running, NONE, [token])
    assert len(drafter.history.texts.log) == 1
    step(drafter, running, SOME, [9])
    assert len(drafter.history.texts.log) == 1 + 3 * 8
