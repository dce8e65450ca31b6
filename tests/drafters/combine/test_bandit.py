"""Drafters by turns: the one that pays, per sequence; the others stay informed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pytest

from paceline.core import tree as trees
from paceline.core.target import Output
from paceline.core.types import (
    Budget,
    Needs,
    SamplingParams,
    SamplingScheme,
    Speculation,
    TokenTree,
)
from paceline.drafters.base import Drafter, NoDrafter
from paceline.drafters.combine.bandit import Choose
from paceline.drafters.draft_model import DraftModel
from paceline.drafters.recycling import Recycling
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import InvalidOption
from paceline.methods.prompt_lookup import PromptLookup
from paceline.policy.controller import Fixed
from paceline.proof.tabular import TabularModel, TabularTarget, processed
from paceline.sampling.generation import Generation, VerifiedDraft
from paceline.trees.deterministic import SharedNoise
from paceline.trees.drawn import Iid
from paceline.verifiers.base import Verifier
from paceline.verifiers.matching import Coupled
from paceline.verifiers.rejection import Rejection

VOCABULARY = 8
MODEL = TabularModel(VOCABULARY, 2, seed=5, sharpness=2.0)
GREEDY = SamplingParams(max_new_tokens=400)
LAW = processed(MODEL.logits, SamplingParams(), ())


class Clock:
    """Time that passes only when somebody takes it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Guesses(Drafter):
    """Right with a chance that depends on the sequence, at a price; greedy targets alone."""

    name: ClassVar[str] = "guesses"

    def __init__(self, clock: Clock, chances: Sequence[float], price: float = 0.0) -> None:
        self.kind: SamplingScheme | None = None
        self.turns: Counter[int] = Counter()
        self.heard: list[int] = []
        self.asked: list[Budget] = []
        self.opened: set[int] = set()
        self._clock = clock
        self._chances = chances
        self._price = price
        self._generator = np.random.default_rng(1)

    def open(self, sequence: Generation) -> None:
        self.opened.add(sequence.id)

    def close(self, sequence: Generation) -> None:
        self.opened.discard(sequence.id)

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        self.asked += budgets
        return [self._propose(*each) for each in zip(sequences, budgets, strict=True)]

    def observe(self, step: Sequence[VerifiedDraft]) -> None:
        self.heard += [len(each.draft) for each in step]
        for each in step:
            assert len(each.output.logits) > len(each.verdict.path)

    def _propose(self, sequence: Generation, budget: Budget) -> TokenTree:
        if not budget.nodes:
            return trees.EMPTY
        self._clock.now += self._price
        self.turns[sequence.id] += 1
        chance = self._chances[sequence.id % len(self._chances)]
        tokens: list[int] = []
        for _ in range(budget.nodes):
            token = LAW((*sequence.tokens, *tokens)).argmax()
            right = self._generator.random() < chance
            tokens.append(token if right else (token + 1) % VOCABULARY)
        return trees.chain(tokens, self.name)


class Slow(TabularTarget):
    """A target whose forwards take a second."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(MODEL.logits, VOCABULARY)
        self._clock = clock

    def forward(self, passes: Sequence[object]) -> list[Output]:  # type: ignore[override]
        self._clock.now += 1.0
        return super().forward(passes)  # type: ignore[arg-type]


def decode(
    drafter: Drafter,
    clock: Clock,
    count: int = 1,
    params: SamplingParams = GREEDY,
    verifier: Verifier | None = None,
    speculations: Sequence[Speculation] = (),
) -> list[list[int]]:
    """Tokens of a batch."""
    stops = StopRules((), 4096)
    decoder = AutoregressiveDecoder(Slow(clock), drafter, verifier or Coupled(), Fixed(4, 4), stops)
    rules = [*speculations, *[Speculation()] * count][:count]
    sequences = [
        Generation.start(id, [id, 1, 2], params, speculation=rule) for id, rule in enumerate(rules)
    ]
    for sequence in sequences:
        decoder.open(sequence)
    running = sequences
    while running:
        for commit in decoder.step(running):
            if commit.finish_reason is not None:
                decoder.close(commit.sequence)
        running = [sequence for sequence in running if sequence.finish_reason is None]
    return [sequence.generated for sequence in sequences]


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("order", [1, -1])
def test_the_better_drafter_gets_most_turns(count: int, order: int) -> None:
    clock = Clock()
    good, bad = Guesses(clock, [0.9]), Guesses(clock, [0.1])
    texts = decode(Choose([good, bad][::order], clock=clock), clock, count)
    assert good.turns.total() > 5 * bad.turns.total() > 0
    assert texts == decode(NoDrafter(), clock, count)


def test_of_equally_good_drafters_the_cheaper_one() -> None:
    clock = Clock()
    cheap, dear = Guesses(clock, [0.8], 0.01), Guesses(clock, [0.8], 1.0)
    decode(Choose([dear, cheap], clock=clock), clock)
    assert cheap.turns.total() > 4 * dear.turns.total()


def test_a_better_drafter_that_costs_too_much_is_left_out() -> None:
    clock = Clock()
    cheap, dear = Guesses(clock, [0.5], 0.0), Guesses(clock, [1.0], 5.0)
    decode(Choose([dear, cheap], clock=clock), clock)
    assert cheap.turns.total() > 4 * dear.turns.total()


def test_none_wins_where_drafting_costs_more_than_it_brings() -> None:
    clock = Clock()
    bad = Guesses(clock, [0.1], 1.0)
    choose = Choose([bad, NoDrafter()], clock=clock)
    texts = decode(choose, clock)
    assert bad.turns.total() < 0.3 * len(texts[0])


def test_sequences_of_a_batch_have_drafters_of_their_own() -> None:
    clock = Clock()
    first, second = Guesses(clock, [0.95, 0.0]), Guesses(clock, [0.0, 0.95])
    decode(Choose([first, second], clock=clock), clock, 4)
    for id in range(4):
        own, other = (first, second) if id % 2 == 0 else (second, first)
        assert own.turns[id] > 3 * other.turns[id]


def test_it_turns_to_the_drafter_that_has_become_better() -> None:
    clock = Clock()
    first, second = Guesses(clock, [0.9]), Guesses(clock, [0.2])
    choose = Choose([first, second], clock=clock)
    decode(choose, clock)
    first._chances, second._chances = second._chances, first._chances
    first.turns.clear()
    second.turns.clear()
    decode(choose, clock, params=SamplingParams(max_new_tokens=1200))
    assert second.turns.total() > 2 * first.turns.total()


def test_all_parts_hear_everything_and_one_is_asked() -> None:
    clock = Clock()
    parts = [Guesses(clock, [0.5]), Guesses(clock, [0.5]), Guesses(clock, [0.5])]
    choose = Choose(parts, clock=clock)
    texts = decode(choose, clock, 2, speculations=[Speculation(enabled=False)])
    assert {len(part.heard) for part in parts} == {len(parts[0].asked)}
    steps = zip(*(part.asked for part in parts), strict=True)
    drafted = [sum(budget.nodes > 0 for budget in each) for each in steps]
    assert max(drafted) == 1
    assert all(part.turns[0] == 0 for part in parts)  # a request without drafts
    assert all(not part.opened for part in parts)
    assert texts == decode(NoDrafter(), clock, 2)
    assert not choose._arms._own


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_real_drafters_take_turns_without_a_trace(temperature: float) -> None:
    """Model and text drafters, foreign drafts and all: the tokens are those of plain decoding."""
    small = TabularModel(VOCABULARY, 3, seed=9, sharpness=2.0)
    params = SamplingParams(temperature=temperature, seed=2, max_new_tokens=60)
    for seed in range(3):
        clock = Clock()
        parts = [
            PromptLookup(),
            Recycling(VOCABULARY),
            DraftModel(TabularTarget(small.logits, VOCABULARY), VOCABULARY, SharedNoise([1])),
        ]
        texts = decode(Choose(parts, seed=seed, clock=clock), clock, 3, params)
        assert texts == decode(NoDrafter(), clock, 3, params)


def test_drafters_that_draw_may_take_turns() -> None:
    clock = Clock()

    def model(seed: int) -> DraftModel:
        table = TabularModel(VOCABULARY, 2, seed, 2.0)
        return DraftModel(TabularTarget(table.logits, VOCABULARY), VOCABULARY, Iid([1]))

    choose = Choose([model(5), model(6), NoDrafter()], clock=clock)
    assert choose.kind == "iid"
    params = SamplingParams(temperature=1.0, max_new_tokens=50)
    assert len(decode(choose, clock, 1, params, Rejection())[0]) == 50


def test_the_same_seed_makes_the_same_choices() -> None:
    def turns(seed: int) -> list[Budget]:
        clock = Clock()
        parts = [Guesses(clock, [0.5]), Guesses(clock, [0.6])]
        decode(Choose(parts, seed=seed, clock=clock), clock, 2)
        return parts[0].asked

    assert turns(1) == turns(1) != turns(2)


def test_reset_forgets() -> None:
    clock = Clock()
    choose = Choose([PromptLookup(), Guesses(clock, [0.5])], clock=clock)
    decode(choose, clock)
    assert choose._arms._history.any()
    choose.reset()
    assert not choose._arms._history.any()


def test_parts_that_cannot_take_turns_are_refused() -> None:
    clock = Clock()
    drawing = Guesses(clock, [0.5])
    drawing.kind = "iid"
    with pytest.raises(InvalidOption, match="'prompt-lookup' deterministic, 'guesses' iid"):
        Choose([PromptLookup(), drawing])
    with pytest.raises(InvalidOption, match="combine 2 to 6 drafters, not 1"):
        Choose([PromptLookup()])
    with pytest.raises(InvalidOption, match="seed must be 0 or more"):
        Choose([PromptLookup(), PromptLookup()], seed=-1)
    assert Choose([NoDrafter(), drawing]).kind == "iid"


def test_it_needs_what_its_parts_need() -> None:
    hidden = Guesses(Clock(), [0.5])
    hidden.needs = Needs(hidden=True)
    assert Choose([PromptLookup(), hidden]).needs == Needs(hidden=True)
    assert Choose([PromptLookup(), Recycling(VOCABULARY)]).needs == Needs(node_logits=True)
