"""Forced tokens are certain; fixed parts of a template are expected once they have begun."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.decoding_loop import decode_all
from tests.helpers.steps import step_of

from paceline.core import tree as trees
from paceline.core.target import NO_STATE, Output
from paceline.core.types import Budget, SamplingParams, TokenTree, Verdict
from paceline.drafters.base import NoDrafter
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import InvalidOption
from paceline.methods.forced import START, Forced, Template
from paceline.policy.controller import Fixed
from paceline.proof.tabular import TabularModel, TabularTarget
from paceline.sampling.generation import Generation
from paceline.verifiers.matching import Coupled

WIDE = Budget(9, 9)
MODEL = TabularModel(12, 1, seed=5, sharpness=2.0)
UNREAD = Output(NO_STATE)


def start(forced: dict[int, int] | None = None, id: int = 0, prompt: int = 3) -> Generation:
    params = SamplingParams(forced_tokens=forced or {}, max_new_tokens=100)
    return Generation.start(id, list(range(50, 50 + prompt)), params)


def commit(drafter: Forced, sequence: Generation, new: list[int]) -> None:
    [draft] = drafter.propose([sequence], [WIDE])
    sequence.tokens += new
    drafter.observe(step_of([sequence], [draft], [Verdict((), new[-1])], [UNREAD]))


def drafted(
    drafter: Forced, sequence: Generation, budget: Budget = WIDE
) -> tuple[list[int], list[float]]:
    [draft] = drafter.propose([sequence], [budget])
    assert draft.sampling is None
    assert draft.source == "forced"
    assert trees.is_chain(draft)
    assert draft.scores is not None
    return draft.tokens.tolist(), draft.scores.tolist()


def opened(template: Template | None = None, forced: dict[int, int] | None = None) -> Forced:
    drafter = Forced(template) if template else Forced()
    drafter.open(start(forced))
    return drafter


@pytest.mark.parametrize("nodes", range(5))
def test_forced_tokens_are_drafted_up_to_the_first_free_place(nodes: int) -> None:
    forced = {0: 7, 1: 8, 2: 9, 4: 5}
    drafter = opened(forced=forced)
    sequence = start(forced)
    for budget in (Budget(nodes, 9), Budget(9, nodes)):
        assert drafted(drafter, sequence, budget) == ([7, 8, 9][:nodes], [1.0] * min(nodes, 3))
    commit(drafter, sequence, [7, 8])
    assert drafted(drafter, sequence) == ([9], [1.0])
    commit(drafter, sequence, [9])
    assert drafted(drafter, sequence) == ([], [])
    commit(drafter, sequence, [1])
    assert drafted(drafter, sequence) == ([5], [1.0])


def naive(parts: list[list[int]], text: list[int], anchored: bool) -> int | None:
    """The token that goes on with a part that has begun, by searching the text from its start."""
    begin = 0
    for part in parts:
        ends = [
            e for e in range(begin + len(part), len(text) + 1) if text[:e][-len(part) :] == part
        ]
        if ends:
            begin = ends[0]
            continue
        rest = text[begin:]
        for length in range(min(len(part) - 1, len(rest)), 0, -1):
            if rest[-length:] == part[:length]:
                return part[length]
        return part[0] if anchored and not text else None
    return None


@settings(max_examples=200)
@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=5), max_size=3),
    st.lists(st.integers(0, 2), max_size=20),
    st.booleans(),
)
def test_standings_equal_those_of_a_naive_search(
    parts: list[list[int]], text: list[int], anchored: bool
) -> None:
    template = Template(parts, anchored=anchored)
    standing = START
    for end in range(len(text) + 1):
        assert template.expected(standing) == naive(parts, text[:end], anchored)
        if end < len(text):
            standing = template.read(standing, text[end])


def test_a_begun_part_is_drafted_to_its_end() -> None:
    """Like the keys and brackets of an object, with values in between."""
    drafter = opened(Template([[1, 2, 3], [4, 5, 6], [7, 8]]))
    sequence = start()
    assert drafted(drafter, sequence)[0] == [1, 2, 3]
    commit(drafter, sequence, [1, 2])
    assert drafted(drafter, sequence)[0] == [3]
    commit(drafter, sequence, [3, 30])
    assert drafted(drafter, sequence)[0] == []  # free text
    commit(drafter, sequence, [31, 4])
    assert drafted(drafter, sequence)[0] == [5, 6]
    commit(drafter, sequence, [9, 4])  # not yet: the part begins again
    assert drafted(drafter, sequence)[0] == [5, 6]
    commit(drafter, sequence, [5, 6, 7])
    assert drafted(drafter, sequence)[0] == [8]
    commit(drafter, sequence, [8, 1])
    assert drafted(drafter, sequence)[0] == []  # all parts are done


def test_a_template_fills_the_gaps_of_forced_tokens() -> None:
    forced = {2: 9, 3: 4}
    drafter = Forced(Template([[1, 2], [4, 5]]))
    drafter.open(sequence := start(forced))
    tokens, scores = drafted(drafter, sequence)
    assert tokens == [1, 2, 9, 4, 5]
    assert scores[1] == scores[2] == scores[3]  # forced tokens cost no certainty
    assert 1 > scores[0] > scores[1] > scores[4] > 0


def first_score(drafter: Forced) -> float:
    drafter.open(sequence := start(id=9))
    _, scores = drafted(drafter, sequence)
    drafter.close(sequence)
    return scores[0]


@pytest.mark.parametrize("follows", [False, True])
def test_what_a_template_is_worth_is_learned_and_reset(follows: bool) -> None:
    drafter = Forced(Template([[1, 2]]))
    fresh = first_score(drafter)
    for _ in range(30):
        drafter.open(sequence := start())
        commit(drafter, sequence, [1 if follows else 7])
        drafter.close(sequence)
    assert (first_score(drafter) > fresh) == follows
    assert first_score(drafter) != fresh
    drafter.reset()
    assert first_score(drafter) == fresh


def test_what_follows_a_miss_is_not_scored() -> None:
    rates = []
    for tail in ([7], [7, 2, 3]):
        drafter = opened(Template([[1, 2, 3]]))
        commit(drafter, start(), tail)
        rates.append(drafter._rates.rates)
    np.testing.assert_array_equal(rates[0], rates[1])


def test_sequences_do_not_mix_and_close_drops_their_state() -> None:
    drafter = Forced(Template([[1, 2, 3]]))
    one, other = start(id=0), start({0: 6}, id=1, prompt=5)
    drafter.open(one)
    drafter.open(other)
    a, b = drafter.propose([one, other], [Budget(2, 2), Budget(9, 9)])
    assert (a.tokens.tolist(), b.tokens.tolist()) == ([1, 2], [6])
    one.tokens.append(1)
    other.tokens += [6, 1, 2]
    drafter.observe(step_of([one, other], [a, b], [Verdict((), 1), Verdict((), 2)], [UNREAD] * 2))
    b, a = drafter.propose([other, one], [WIDE] * 2)
    assert (a.tokens.tolist(), b.tokens.tolist()) == ([2, 3], [3])
    drafter.close(one)
    drafter.close(one)  # closing twice is harmless
    drafter.close(other)
    assert not drafter._standings
    assert not drafter._expectations


def test_an_empty_part_is_refused() -> None:
    with pytest.raises(InvalidOption, match="part of a template is empty"):
        Template([[1], []])


def decode(drafter: Forced | NoDrafter, temperature: float) -> tuple[list[list[int]], list[float]]:
    """Outputs of a ragged batch, and the share of drafted tokens that stood."""
    target = TabularTarget(MODEL.logits, 12)
    decoder = AutoregressiveDecoder(target, drafter, Coupled(), Fixed(6, 6), StopRules((), 500))
    forced = [{0: 4, 1: 4, 2: 7, 10: 1}, {i: i % 3 for i in range(20)}, {}]
    sequences = [
        Generation.start(i, [i, 3], SamplingParams(temperature, forced_tokens=f, max_new_tokens=30))
        for i, f in enumerate(forced)
    ]
    decode_all(decoder, sequences)
    stats = [s.stats for s in sequences]
    return [s.generated for s in sequences], [
        s.accepted_tokens / max(1, s.drafted_tokens) for s in stats
    ]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_forced_drafts_always_stand_and_change_nothing(temperature: float) -> None:
    expected, _ = decode(NoDrafter(), temperature)
    tokens, shares = decode(Forced(), temperature)
    assert tokens == expected
    assert shares == [1.0, 1.0, 0.0]
    text = expected[2]
    tokens, shares = decode(Forced(Template([text[:5], text[8:12]])), temperature)
    assert tokens == expected
    assert shares[2] > 0.5


def test_no_draft_is_a_tree_of_no_nodes() -> None:
    [draft] = opened().propose([start()], [Budget(3, 3)])
    assert isinstance(draft, TokenTree)
    assert (len(draft), draft.tokens.dtype) == (0, np.int64)
