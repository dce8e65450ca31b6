"""The best hierarchy: the recursion against simulated rounds, the search against all stacks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from benchmarks.hierarchy import Seconds, Stack, best_stack, seconds_per_token, tokens_per_round

from paceline.errors import InvalidOption


def line(first: float, each: float) -> Seconds:
    return lambda rows: first + each * (rows - 1)


def latency(stack: Stack, forwards: list[Seconds], chances: list[list[float]]) -> float:
    total = forwards[stack.models[0]](1)
    for below, model, drafted in zip(
        stack.models, stack.models[1:], stack.drafts[1:], strict=False
    ):
        total = seconds_per_token(total, forwards[model], chances[model][below], drafted)
    return total


@pytest.mark.parametrize("seed", range(12))
def test_no_stack_is_better_than_the_best(seed: int) -> None:
    rng, longest = np.random.default_rng(seed), 4
    times = np.sort(rng.uniform(0.01, 1, 4))
    forwards = [line(time, rng.uniform(0, 0.2) * time) for time in times]
    chances = [list(np.sort(rng.uniform(0.2, 0.98, i))) for i in range(4)]
    best = best_stack(forwards, chances, longest)
    assert best.models[-1] == 3
    assert best.seconds == pytest.approx(latency(best, forwards, chances))
    stacks = [
        Stack((*some, 3), (0, *drafts), 0.0)
        for count in range(4)
        for some in itertools.combinations(range(3), count)
        for drafts in itertools.product(range(1, longest + 1), repeat=count)
    ]
    assert len(stacks) == 1 + 3 * 4 + 3 * 16 + 64
    least = min(latency(each, forwards, chances) for each in stacks)
    assert best.seconds == pytest.approx(least)


def test_the_recursion_is_the_mean_of_rounds() -> None:
    """Control: with the formula for a draft one shorter the two part."""
    rng, chance, drafted = np.random.default_rng(0), 0.7, 5
    forward, below = line(1.0, 0.05), 0.2
    right = (rng.random((200_000, drafted)) < chance).cumprod(axis=1).sum(axis=1) + 1
    simulated = (drafted * below + forward(drafted + 1)) / right.mean()
    assert seconds_per_token(below, forward, chance, drafted) == pytest.approx(simulated, rel=5e-3)
    assert seconds_per_token(below, forward, chance, 4) != pytest.approx(simulated, rel=1e-2)


def test_limits() -> None:
    assert tokens_per_round(1.0, 7) == 8
    assert tokens_per_round(0.0, 7) == 1
    useless = best_stack([line(0.5, 0), line(1.0, 0)], [[], [0.0]])
    assert useless == Stack((1,), (0,), 1.0)
    free = best_stack([line(0.0, 0), line(1.0, 0)], [[], [1.0]], longest=9)
    assert free == Stack((0, 1), (0, 9), 0.1)


def test_bad_input() -> None:
    with pytest.raises(InvalidOption, match="needs a model"):
        best_stack([], [])
    with pytest.raises(InvalidOption, match="row of chances"):
        best_stack([line(1, 0), line(2, 0)], [[], []])
    with pytest.raises(InvalidOption, match="in \\[0, 1\\]"):
        best_stack([line(1, 0), line(2, 0)], [[], [1.5]])
