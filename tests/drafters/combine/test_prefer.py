"""A cheap drafter before a dearer one: who is asked, what is verified, and that the text stays."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
from tests.drafters.combine.test_bandit import GREEDY, Clock, Guesses, decode
from tests.drafters.combine.test_merged import start
from tests.helpers.steps import step_of

from paceline.core import tree as trees
from paceline.core.target import Output
from paceline.core.types import Budget, Needs, SamplingParams, TokenTree, Verdict
from paceline.drafters.base import NoDrafter
from paceline.drafters.combine.fallback import FallbackDrafter
from paceline.errors import InvalidOption
from paceline.methods.prompt_lookup import PromptLookup
from paceline.policy.acceptance import Calibration
from paceline.registry.options import Options
from paceline.sampling.generation import Generation
from paceline.trees.union import weighed
from paceline.verifiers.base import walk

LONG = replace(GREEDY, max_new_tokens=400)


class Says(Guesses):
    """Right with a chance, and says with which."""

    def __init__(self, clock: Clock, chance: float, price: float, says: float | None = None):
        super().__init__(clock, [chance], price)
        self.says = chance if says is None else says

    def _propose(self, sequence: Generation, budget: Budget) -> TokenTree:
        draft = super()._propose(sequence, budget)
        return replace(draft, scores=self.says ** np.arange(1, len(draft) + 1))


class Bears(Says):
    """May miss steps."""

    tolerates_gaps = True


def shares(cheap: float, dear: float, price: float, **more: float) -> tuple[float, float]:
    """Of steps, those in which the dearer part was asked, and those in which it drafted.

    A step takes a second.
    """
    clock = Clock()
    parts = Says(clock, cheap, 0.0), Says(clock, dear, price, **more)
    decode(FallbackDrafter(parts, clock=clock), clock, params=LONG)
    asked = parts[1].turns[0]
    return asked / parts[0].turns[0], asked / max(1, len(parts[1].asked))


def test_where_the_cheap_part_is_sure_the_dear_one_is_seldom_asked() -> None:
    assert shares(0.99, 0.9, 0.2)[0] < 0.15
    assert shares(0.1, 0.9, 0.2)[0] > 0.95


def test_the_price_decides_between_equals() -> None:
    cheap = shares(0.5, 0.7, 0.01)[0]
    dear = shares(0.5, 0.7, 2.0)[0]
    assert cheap > 0.95
    assert dear < 0.15


def test_empty_promises_are_seen_through() -> None:
    """A part that says 0.9 and keeps 0.1 is asked less and less."""
    assert shares(0.6, 0.1, 0.05, says=0.9)[0] < 0.6
    assert shares(0.6, 0.9, 0.05, says=0.9)[0] > 0.95


class Fixed(Says):
    """Drafts the same each time."""

    def __init__(self, tokens: list[int], scores: list[float]) -> None:
        super().__init__(Clock(), 1.0, 0.0)
        self.draft = trees.chain(tokens, self.name, scores=np.array(scores))

    def _propose(self, sequence: Generation, budget: Budget) -> TokenTree:
        return self.draft if budget.nodes else trees.EMPTY


def step(prefer: FallbackDrafter, sequence: Generation, committed: list[int]) -> TokenTree:
    """Propose, verify against what is committed, observe."""
    [draft] = prefer.propose([sequence], [Budget(9, 9)])
    verdict = walk(draft, lambda node, depth: committed[depth])
    prefer.observe(step_of([sequence], [draft], [verdict], [Output(np.zeros((9, 3), np.float32))]))
    return draft


def test_the_draft_that_promises_more_is_verified() -> None:
    prefer = FallbackDrafter([Fixed([1, 1], [0.3, 0.09]), Fixed([2, 2, 2], [0.6, 0.36, 0.216])])
    sequence = start([0, 1, 2], 0)
    prefer.open(sequence)
    [none] = prefer.propose([sequence], [Budget(0, 0)])
    assert len(none) == 0
    [draft] = prefer.propose([sequence], [Budget(3, 3)])
    assert draft.tokens.tolist() == [2, 2, 2]
    against = 2 * (1 - 0.3) / (2 - 0.3 * (1 + 0.6))  # what the other part says (`agreement.py`)
    np.testing.assert_allclose(draft.scores, against * 0.6 ** np.arange(1, 4))


def test_likely_nodes_of_others_are_verified_beside_it() -> None:
    """The draft that promises most stands first; what both have is there once."""
    parts = Fixed([2, 1, 5, 6], [0.9, 0.6, 0.5, 0.1]), Fixed([2, 2, 2], [0.8, 0.5, 0.4])
    prefer = FallbackDrafter(parts)
    sequence = start([0, 1, 2], 0)
    prefer.open(sequence)
    for budget, tokens in (
        (Budget(9, 9), [2, 2, 2, 1, 5]),  # 6 is too unlikely
        (Budget(4, 9), [2, 2, 2, 1]),
        (Budget(9, 9, 0.25), [2, 2, 2, 1]),
        (Budget(9, 9, 0.5), [2, 2, 2]),
    ):
        [draft] = prefer.propose([sequence], [budget])
        assert draft.tokens.tolist() == tokens
        assert draft.parents.tolist() == [-1, 0, 1, 0, 3][: len(tokens)]
        assert draft.scores is not None
        union = weighed(parts[0].draft, parts[1].draft, 0.1)
        np.testing.assert_array_equal(draft.scores, union.scores[: len(tokens)])


def test_drafts_without_scores_get_those_of_their_depths() -> None:
    """So that what drafts with scores is judged and sized as before."""
    parts = Fixed([1, 1, 1], [0.9, 0.8, 0.7]), Fixed([2, 2, 2], [0.6, 0.5, 0.4])
    parts[1].draft = replace(parts[1].draft, scores=None)
    prefer = FallbackDrafter(parts, clock=Clock())
    sequence = start([0, 1, 2], 0)
    prefer.open(sequence)
    assert step(prefer, sequence, [1, 2, 0]).tokens.tolist()[:3] == [1, 1, 1]
    for _ in range(60):
        draft = step(prefer, sequence, [2, 2, 0])
        assert draft.scores is not None
    reach = prefer._estimates[1].reach()
    assert reach[1] > 0.8 > 0.2 > reach[2]
    assert draft.tokens.tolist()[:2] == [2, 2]


def test_others_are_believed_as_far_as_they_have_kept_their_promises() -> None:
    parts = Fixed([2, 2, 2], [0.9, 0.8, 0.7]), Fixed([1], [0.9])
    prefer = FallbackDrafter(parts, clock=Clock())
    sequence = start([0, 1, 2], 0)
    prefer.open(sequence)
    sizes = [len(step(prefer, sequence, [2, 2, 2, 0])) for _ in range(40)]
    assert sizes[0] == 4
    assert sizes[-1] == 3


def test_promises_that_one_text_breaks_are_believed_in_another() -> None:
    prefer = FallbackDrafter([Fixed([1], [0.8]), Fixed([2], [0.6])], clock=Clock())
    broken, other = (start([0, 1, 2], id) for id in range(2))
    for sequence in (broken, other):
        prefer.open(sequence)
    first: dict[int, list[int]] = {0: [], 1: []}
    for sequence in (broken, other) * 16:
        committed = [2, 0] if sequence is broken else [1, 0]
        first[sequence.id].append(int(step(prefer, sequence, committed).tokens[0]))
    assert set(first[0][8:]) == {2}
    assert set(first[1][8:]) == {1}


@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
def test_copies_are_not_asked_for_what_is_drawn_freely(temperature: float, follows: bool) -> None:
    """If another part knows the noise that it is drawn with."""
    clock = Clock()
    parts = Says(clock, 0.9, 0.0), Says(clock, 0.5, 0.0)
    parts[1].gumbel_coupled = follows
    prefer = FallbackDrafter(parts, clock=clock)
    sequence = Generation.start(0, [0, 1, 2], SamplingParams(temperature=temperature))
    prefer.open(sequence)
    prefer.propose([sequence], [Budget(1, 1)])
    free = follows and temperature == 1
    assert parts[0].asked == [Budget(0, 0) if free else Budget(1, 1)]


@pytest.mark.parametrize(
    ("committed", "right", "promised"),
    [([7], 0, 1.5), ([1, 7], 1, 1.5), ([1], 1, 0.8), ([1, 2], 2, 1.3)],
)
def test_drafts_are_judged_by_what_was_committed(
    committed: list[int], right: int, promised: float
) -> None:
    """Whatever was verified of them. Where all that is known is right, the rest is not judged."""
    prefer = FallbackDrafter([Fixed([1, 2, 3], [0.8, 0.5, 0.2]), Fixed([4], [0.9])], clock=Clock())
    sequence = start([0, 1, 2], 0)
    prefer.open(sequence)
    prefer.propose([sequence], [Budget(9, 9)])
    draft = trees.chain(committed[:-1])  # what is left of the union after pruning
    verdict = Verdict(tuple(range(len(draft))), committed[-1])
    prefer.observe(step_of([sequence], [draft], [verdict], [Output(np.zeros((9, 3), np.float32))]))
    alone = Calibration()
    alone.learn(0, right, promised)
    assert prefer._estimates[0].calibration.factor(0) == pytest.approx(alone.factor(0))


@pytest.mark.parametrize(("count", "asked"), [(1, True), (2, False)])
def test_batches_have_no_rows_for_the_dear_part(count: int, asked: bool) -> None:
    clock = Clock()
    dear = Says(clock, 0.9, 0.01)
    prefer = FallbackDrafter([Says(clock, 0.1, 0.0), dear], clock=clock)
    sequences = [start([0, 1, 2], id) for id in range(count)]
    for sequence in sequences:
        prefer.open(sequence)
    prefer.propose(sequences, [Budget(3, 3)] * count)
    assert any(budget.nodes for budget in dear.asked) == asked


def test_batches_need_what_those_need_that_hear_of_them() -> None:
    """A part that bears gaps does not; others are told of everything."""
    clock = Clock()
    parts = [Says(clock, 0.1, 0.0), Bears(clock, 0.1, 0.0), Says(clock, 0.1, 0.0)]
    parts[1].needs = Needs(features=True, recent=9)
    parts[2].needs = Needs(node_logits=True)
    prefer = FallbackDrafter(parts, clock=clock)
    one, two = sequences = [start([0, 1, 2], id) for id in range(2)]
    assert prefer.needs == prefer.needs_of([one]) == Needs(False, True, True, 9)
    assert prefer.needs_of(sequences) == Needs(node_logits=True)
    prefer.open(one)
    prefer.open(two)
    prefer.propose(sequences, [Budget(3, 3)] * 2)
    prefer.observe(step_of(sequences))
    assert [len(part.asked) for part in parts] == [2, 0, 2]
    parts[2].needs = Needs(features=True)
    assert FallbackDrafter([parts[0], parts[2]]).needs_of(sequences) == parts[2].needs


def test_a_part_is_not_judged_by_the_step_at_which_it_knew_nothing() -> None:
    clock = Clock()
    cheap, dear = Says(clock, 0.1, 0.0), Bears(clock, 0.9, 0.01)
    dear.needs = Needs(features=True, recent=9)
    prefer = FallbackDrafter([cheap, dear], clock=clock)
    before = copy.deepcopy(prefer._estimates[1].gate(0.0))
    sequences = [start([0, 1, 2], id) for id in range(2)]
    prefer.observe(step_of(sequences))
    prefer.propose(sequences[:1], [Budget(3, 3)])
    assert not dear.asked
    gate = prefer._estimates[1].gate(0.0)
    assert (gate.waited, gate.gain.mean) == (before.waited, before.gain.mean)


@pytest.mark.parametrize("seed", range(3))
def test_the_text_is_that_of_plain_decoding(seed: int) -> None:
    params = SamplingParams(temperature=0.8 * (seed > 0), seed=seed, max_new_tokens=40)
    clock = Clock()
    parts = [Says(clock, 0.4, 0.0), Says(clock, 0.7, 0.2), PromptLookup()]
    drafted = decode(FallbackDrafter(parts, clock=clock), clock, 3, params)
    assert drafted == decode(NoDrafter(), Clock(), 3, params)


def test_parts_hear_everything_and_nothing_is_left_behind() -> None:
    clock = Clock()
    parts = Says(clock, 0.4, 0.0), Says(clock, 0.7, 0.2)
    prefer = FallbackDrafter(parts, clock=clock)
    decode(prefer, clock, 2)
    assert parts[0].heard == parts[1].heard
    assert not parts[0].opened | parts[1].opened
    assert not prefer._made


def test_drawn_drafts_and_lone_parts_are_refused() -> None:
    clock = Clock()
    drawn = Guesses(clock, [0.5])
    drawn.kind = "iid"
    with pytest.raises(InvalidOption, match="cannot be compared"):
        FallbackDrafter([PromptLookup(), drawn])
    with pytest.raises(InvalidOption, match="2 to"):
        FallbackDrafter([PromptLookup()])


def test_names() -> None:
    Options().check("suffix-automaton>recycling+prompt-lookup|none")
    with pytest.raises(InvalidOption, match="empty part"):
        Options().check("suffix-automaton>")
    with pytest.raises(InvalidOption, match="nonsense"):
        Options().check("suffix-automaton>nonsense")
