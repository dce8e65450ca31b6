"""Drafts that begin early are those that would have been made, and none is lost or taken twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.drafters.network.test_trained import (
    CONFIG,
    DRAFTERS,
    PROMPTS,
    TARGETS,
    context,
    random_weights,
    saved,
    small,
)

from paceline.core.types import Budget, SamplingParams, TokenTree
from paceline.drafters.network.drafter import TrainedDrafter
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import OutOfMemory
from paceline.policy.controller import Controller
from paceline.sampling.sequence import Sequence
from paceline.verifiers.matching import Coupled


class Sizes(Controller):
    """Says a size for each step, over and over."""

    def __init__(self, *budgets: Budget) -> None:
        self.budgets_ = budgets
        self.step = 0

    def budgets(self, sequences: Any) -> list[Budget]:
        self.step += 1
        return [self.budgets_[self.step % len(self.budgets_)]] * len(sequences)


class Watched:
    """A runner that notes what it was asked for, and may have no memory."""

    def __init__(self, runner: Any, early: bool) -> None:
        self.runner = runner
        self.asked: list[str] = []
        self.full = False
        if early:
            self.begin, self.finish = self._begin, self._finish

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)

    def draft(self, grown: Any, depth: int) -> Any:
        self.asked.append("draft")
        return self.runner.draft(grown, depth)

    def _begin(self, grown: Any, depth: int) -> None:
        self.asked.append("begin")
        if self.full:
            raise OutOfMemory("the network's cache is full")
        self.runner.begin(grown, depth)

    def _finish(self) -> Any:
        self.asked.append("finish")
        return self.runner.finish()


WHOLE, SMALL, NOTHING = Budget(6, 3), Budget(2, 1), Budget(0, 0)
GREEDY = SamplingParams(max_new_tokens=24)
SAMPLED = SamplingParams(max_new_tokens=24, temperature=1.0, seed=3)


@pytest.fixture(params=["hydra", "eagle3"])
def weights(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    return request.param, str(saved(tmp_path / "weights", random_weights(small(request.param))))


def made(weights: tuple[str, str], *, early: bool = True) -> tuple[TrainedDrafter, Watched]:
    name, path = weights
    drafter = DRAFTERS[name].create(context(TARGETS["cpu"](), weights=path))
    runner = Watched(drafter._begin.runner, early)
    version: Any = type(drafter._begin)(runner)  # type: ignore[arg-type]
    drafter._begin = drafter._newest = version
    return drafter, runner


def drafts(
    drafter: TrainedDrafter, params: SamplingParams, *budgets: Budget
) -> Iterator[tuple[TokenTree, Sequence]]:
    """Draft by draft, until the text ends."""
    stops = StopRules((), CONFIG.max_context)
    target = TARGETS["cpu"]()
    decoder = AutoregressiveDecoder(target, drafter, Coupled(), Sizes(*budgets), stops)
    sequence = Sequence.start(0, list(PROMPTS[2]), params)
    decoder.open(sequence)
    made: list[TokenTree] = []
    propose = drafter.propose

    def noted(*given: Any) -> list[TokenTree]:
        made[:] = propose(*given)
        return list(made)

    drafter.propose = noted  # type: ignore[method-assign]
    while not sequence.finish_reason:
        decoder.step([sequence])
        yield made[0], sequence
    decoder.close(sequence)


def told(draft: TokenTree) -> tuple[Any, ...]:
    scores = draft.scores
    return (
        draft.tokens.tolist(),
        draft.parents.tolist(),
        None if scores is None else scores.tolist(),
    )


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("budgets", [[WHOLE], [WHOLE, WHOLE, WHOLE, NOTHING]])
def test_drafts_are_those_that_are_made_when_they_are_asked_for(
    weights: tuple[str, str], params: SamplingParams, budgets: list[Budget]
) -> None:
    (early, asked), (usual, waits) = made(weights), made(weights, early=False)
    found = [told(draft) for draft, _ in drafts(early, params, *budgets)]
    assert found == [told(draft) for draft, _ in drafts(usual, params, *budgets)]
    assert asked.asked.count("begin") > 4
    assert "begin" not in waits.asked
    assert asked.asked.count("finish") == asked.asked.count("begin")


def test_a_draft_begins_where_steps_have_asked_for_some(weights: tuple[str, str]) -> None:
    drafter, runner = made(weights)
    steps = []
    for _ in drafts(drafter, GREEDY, WHOLE, WHOLE, WHOLE, NOTHING):
        steps.append(tuple(runner.asked))
        runner.asked.clear()
    # Steps are asked for the second, third, fourth (none) and first size, by turns.
    assert steps[:7] == [
        ("draft",),
        ("draft", "begin"),
        ("finish",),  # which nobody had asked for
        ("draft",),
        ("draft", "begin"),
        ("finish", "begin"),
        ("finish",),
    ]


def test_a_draft_has_the_size_that_is_asked_for(weights: tuple[str, str]) -> None:
    """Not a larger one, if a larger one was begun."""
    drafter, _ = made(weights)
    for step, (draft, sequence) in enumerate(drafts(drafter, GREEDY, WHOLE, SMALL)):
        budget = (SMALL, WHOLE)[step % 2]
        assert len(draft) <= budget.nodes
        assert len(draft) > 0 or sequence.finish_reason


def test_nothing_begins_behind_the_end(weights: tuple[str, str]) -> None:
    drafter, runner = made(weights)
    for _, sequence in drafts(drafter, GREEDY, WHOLE):
        if sequence.finish_reason:
            assert runner.asked[-1] != "begin"
        runner.asked.clear()


def test_without_memory_who_asks_hears_of_it(weights: tuple[str, str]) -> None:
    drafter, runner = made(weights)
    runner.full = True
    usual, _ = made(weights, early=False)
    found = [told(draft) for draft, _ in drafts(drafter, GREEDY, WHOLE)]
    assert found == [told(draft) for draft, _ in drafts(usual, GREEDY, WHOLE)]
    assert "finish" not in runner.asked


def by_turns(drafter: TrainedDrafter, turns: list[list[int]]) -> tuple[Any, list[list[int]]]:
    """Drafts by sequence and length, and texts, of two sequences that are stepped so."""
    stops = StopRules((), CONFIG.max_context)
    decoder = AutoregressiveDecoder(TARGETS["cpu"](), drafter, Coupled(), Sizes(WHOLE), stops)
    params = SamplingParams(max_new_tokens=60)
    sequences = [Sequence.start(i, list(PROMPTS[i]), params) for i in (0, 2)]
    for sequence in sequences:
        decoder.open(sequence)
    known: dict[tuple[int, int], Any] = {}
    propose = drafter.propose

    def noted(asked: Any, budgets: Any) -> list[TokenTree]:
        made = propose(asked, budgets)
        for sequence, draft in zip(asked, made, strict=True):
            if len(draft):
                known[sequence.id, len(sequence.tokens)] = told(draft)[:2]
        return made

    drafter.propose = noted  # type: ignore[method-assign]
    for which in turns:
        decoder.step([sequences[i] for i in which])
    for sequence in sequences:
        progress = drafter._progress[sequence.id]
        drafter._early.give_up(progress)
        rows = progress.cache.paged.length + len(progress.tokens)
        assert rows == len(sequence.tokens) - 1  # each was taken in once, or waits
        decoder.close(sequence)
    return known, [sequence.tokens for sequence in sequences]


@pytest.mark.parametrize(
    "turns",
    [
        [[0]] * 4 + [[0, 1]] * 4 + [[1]] * 4,
        [[0]] * 4 + [[1, 0]] * 4 + [[0]] * 4,
        [[0], [1]] * 8,
        [[0]] * 4 + [[1]] * 4 + [[0, 1]] * 2,
    ],
)
def test_sequences_come_and_go(weights: tuple[str, str], turns: list[list[int]]) -> None:
    """What has begun is for one of them, and no row is taken in twice or not at all."""
    (early, asked), (usual, _) = made(weights), made(weights, early=False)
    found, texts = by_turns(early, turns)
    expected, same = by_turns(usual, turns)
    assert asked.asked.count("begin") > 2
    for one, other in zip(texts, same, strict=True):
        both = min(len(one), len(other))
        assert one[:both] == other[:both]
    common = found.keys() & expected.keys()
    assert len(common) > len(expected) / 2
    assert {key: found[key] for key in common} == {key: expected[key] for key in common}
