"""Input-guided drafting: alignment by n-grams against a naive one, and copies with edits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.steps import step_of

from paceline.core.target import Output
from paceline.core.types import Budget, SamplingParams, TokenTree, Verdict
from paceline.drafters.candidates import alone, length_kind
from paceline.methods.input_guided import Alignment, InputGuided
from paceline.sampling.generation import Generation

Text = list[int]


class Naive:
    """The alignment in the words of its definition, searching the whole source every time."""

    def __init__(self, source: Text) -> None:
        self.source, self.copy = source, []
        self.at: int | None = None
        self.run = self.anchor = self.rest = 0
        self.sure = False

    def places(self, n: int) -> Text:
        """Where tokens stand that follow the copy's last n."""
        gram = self.copy[-n:]
        return [e for e in range(n, len(self.source)) if self.source[e - n : e] == gram]

    def go_on(self, token: int) -> None:
        self.copy.append(token)
        if self.at is not None:
            if self.source[self.at] == token:
                self.at, self.run = self.at + 1, self.run + 1
                if self.at < len(self.source):
                    return
            if self.run > self.anchor:
                self.rest = self.at
        self.at = None
        sizes = range(1, min(3, len(self.copy)) + 1)
        for n in sizes:
            ahead = [e for e in self.places(n) if e - n >= self.rest]
            if len(ahead) == 1:
                self.at, self.run, self.anchor, self.sure = ahead[0], n, n, True
                return
        for n in reversed(sizes):
            places = self.places(n)
            if places:
                ahead = [e for e in places if e - n >= self.rest]
                self.at = ahead[0] if ahead else places[-1]
                self.run, self.anchor, self.sure = n, n, False
                return


@settings(max_examples=100)
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=30),
    st.lists(st.integers(0, 7), max_size=30),
)
def test_the_alignment_equals_a_naive_search(source: Text, copy: Text) -> None:
    ours, naive = Alignment(source), Naive(source)
    for token in copy:
        ours.go_on(token)
        naive.go_on(token)
        assert ours.at == naive.at
        if ours.at is not None:
            assert (ours.run, ours.sure) == (naive.run, naive.sure)
            assert ours.source[ours.at - ours.run : ours.at] == (naive.copy[-ours.run :])


def start(tokens: Text, id: int = 0) -> Generation:
    return Generation.start(id, tokens, SamplingParams())


def propose(drafter: InputGuided, sequence: Generation, budget: Budget) -> TokenTree:
    [draft] = drafter.propose([sequence], [budget])
    return draft


def commit(drafter: InputGuided, sequence: Generation, draft: TokenTree, new: Text) -> None:
    sequence.tokens += new
    output = Output(np.zeros((1 + len(draft), 4), np.float32))
    drafter.observe(step_of([sequence], [draft], [Verdict((), new[-1])], [output]))


def forwards(source: Text, output: Text, nodes: int = 20) -> int:
    """Greedy forwards that an output takes."""
    drafter = InputGuided()
    drafter.open(sequence := start(source))
    count, done = 0, 0
    while done < len(output):
        draft = propose(drafter, sequence, Budget(nodes, nodes))
        accepted = 0
        for drafted, token in zip(draft.tokens.tolist(), output[done:], strict=False):
            if drafted != token:
                break
            accepted += 1
        run = output[done : done + accepted + 1]
        commit(drafter, sequence, draft, run)
        done += len(run)
        count += 1
    return count


WORDS = list(range(100, 160))
EDITED = [*WORDS[:20], 900, *WORDS[21:40], *WORDS[43:50], 901, 902, *WORDS[50:]]


@pytest.mark.parametrize(
    ("output", "most"),
    [
        (WORDS, 4),  # one token to begin with, then 59 in threes of up to 21
        (EDITED, 10),  # a replacement, a deletion, an insertion: two forwards for each
        (WORDS[30:] + WORDS[:30], 6),  # the second half first
        ([900 + i for i in range(30)], 30),  # nothing to copy
    ],
    ids=["verbatim", "edited", "rearranged", "unrelated"],
)
def test_copies_take_few_forwards_and_nothing_costs_an_extra_one(output: Text, most: int) -> None:
    assert forwards([1, 2, 3, *WORDS, 4, 5], output) <= most


def test_there_is_no_draft_before_the_output_has_begun() -> None:
    drafter = InputGuided()
    drafter.open(sequence := start([1, 2, 3]))
    assert len(propose(drafter, sequence, Budget(5, 5))) == 0


def test_the_shortest_unique_end_of_the_output_finds_the_place() -> None:
    drafter = InputGuided()
    drafter.open(sequence := start([7, 1, 8, 7, 2, 9, 3]))
    draft = propose(drafter, sequence, Budget(9, 9))
    commit(drafter, sequence, draft, [7])  # twice in the source: the next one, unsure
    unsure = propose(drafter, sequence, Budget(9, 9))
    assert unsure.tokens.tolist() == [1, 8, 7, 2, 9, 3]
    commit(drafter, sequence, unsure, [2])  # 2 is unique
    sure = propose(drafter, sequence, Budget(9, 9))
    assert sure.tokens.tolist() == [9, 3]
    assert unsure.scores is not None
    assert sure.scores is not None
    assert sure.scores[0] == pytest.approx(alone()[length_kind(1)])
    assert unsure.scores[0] < sure.scores[0]


def test_a_place_that_nothing_confirmed_does_not_move_the_rest_of_the_source() -> None:
    """A chance hit far ahead must not hide what lies between."""
    alignment = Alignment([10, 11, 12, 13, 14, 99, 20])
    alignment.go_on(99)
    assert alignment.at == 6
    alignment.go_on(11)  # not 20: the jump was wrong
    assert alignment.at == 2


def test_what_follows_the_source_has_no_draft() -> None:
    drafter = InputGuided()
    drafter.open(sequence := start([1, 2, 3]))
    for token in (1, 2, 3):
        draft = propose(drafter, sequence, Budget(9, 9))
        commit(drafter, sequence, draft, [token])
    assert len(propose(drafter, sequence, Budget(9, 9))) == 0


def test_closing_drops_the_source() -> None:
    drafter = InputGuided()
    drafter.open(sequence := start([1, 2, 3]))
    propose(drafter, sequence, Budget(1, 1))
    drafter.close(sequence)
    assert drafter._alignments == drafter._guesses == {}
