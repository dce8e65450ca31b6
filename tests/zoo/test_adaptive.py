"""Draft length from recent acceptance: the rule, and how it behaves."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.policy.environment import Machine, play, start, within

from paceline.core import tree as trees
from paceline.core.types import Budget, Verdict
from paceline.errors import InvalidOption
from paceline.policy.controller import ControllerContext
from paceline.policy.cost import CostModel
from paceline.zoo.adaptive import Adaptive


def no_costs() -> CostModel:
    raise AssertionError("a length needs no measurement")


def naive(steps: list[tuple[int, int]], memory: float, rise: int, least: int, depth: int) -> int:
    """The length after (drafted, accepted) steps, by sums over the whole past."""
    steps = [(drafted, accepted) for drafted, accepted in steps if drafted]
    if not steps:
        return max(least, math.ceil(depth / 2))
    weights = [(1 - memory) * memory**age for age in range(len(steps))]
    weights[-1] = memory ** (len(steps) - 1)
    past = list(zip(reversed(steps), weights, strict=True))
    drafted = sum(weight * each[0] for each, weight in past)
    accepted = sum(weight * each[1] for each, weight in past)
    raised = rise if accepted >= 0.8 * drafted else 0
    return min(depth, max(least, math.floor(1 + accepted) + raised))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=8),
    st.sampled_from([0.0, 0.25, 0.5, 0.75]),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(3, 9),
)
def test_the_rule_is_what_it_says(
    steps: list[tuple[int, int]], memory: float, rise: int, least: int, depth: int
) -> None:
    steps = [(drafted, min(drafted, accepted)) for drafted, accepted in steps]
    controller = Adaptive(memory, rise, least, nodes=depth, depth=depth)
    [sequence] = start(1)
    for drafted, accepted in steps:
        verdict = Verdict(tuple(range(accepted)), 0)
        controller.observe([sequence], [trees.chain([0] * drafted)], [verdict], 0.0, 1.0)
    length = naive(steps, memory, rise, least, depth)
    assert controller.budgets([sequence]) == [Budget(length, length)]


@pytest.mark.parametrize("sequences", [1, 4])
def test_it_shrinks_when_nothing_is_accepted_and_grows_back(sequences: int) -> None:
    def acceptance(step: int, id: int) -> float:
        return float(step >= 10)

    sizes = play(Adaptive(), Machine(0.1), acceptance, sequences=sequences, steps=20).sizes
    assert (sizes[0] == 4).all()
    assert (sizes[4:11] == 1).all()
    assert (np.diff(sizes[10:], axis=0) >= 0).all()
    assert (sizes[18:] == 8).all()


def test_each_sequence_has_its_own_length() -> None:
    run = play(Adaptive(), Machine(0.1), lambda step, id: float(id == 1), sequences=2, steps=10)
    assert run.sizes[-1].tolist() == [1, 8]


@settings(max_examples=20, deadline=None)
@given(st.floats(0, 1), st.integers(1, 4), st.integers(4, 12), st.integers(1, 40))
def test_lengths_stay_within_limits(chance: float, least: int, depth: int, nodes: int) -> None:
    controller = Adaptive(least=least, nodes=nodes, depth=depth)
    running = start(2)
    for _ in range(10):
        budgets = controller.budgets(running)
        assert all(least <= budget.depth for budget in budgets)
        assert all(within(b, Budget(max(nodes, b.depth), depth)) for b in budgets)
        play(controller, Machine(0.1), lambda step, id: chance, sequences=running, steps=1)
    assert controller.budgets([]) == []


def test_a_shorter_tree_keeps_its_width() -> None:
    controller = Adaptive(nodes=24, depth=8)
    [sequence] = start(1)
    assert controller.budgets([sequence]) == [Budget(12, 4)]
    controller.observe([sequence], [trees.chain([0])], [Verdict((), 0)], 0.0, 1.0)
    assert controller.budgets([sequence]) == [Budget(3, 1)]


def test_closed_sequences_are_forgotten() -> None:
    controller = Adaptive()
    running = start(2)
    play(controller, Machine(0.1), lambda step, id: 0.0, sequences=running, steps=5)
    controller.close(running[0])
    controller.close(running[0])
    assert [budget.depth for budget in controller.budgets(running)] == [4, 1]


def test_it_is_built_from_options() -> None:
    made = Adaptive.create(ControllerContext(no_costs, depth=6, options={"least": "5"}))
    assert made.budgets(start(1)) == [Budget(5, 5)]
    for options, says in (
        ({"memory": "1"}, "memory must be in"),
        ({"rise": "0"}, "rise must be 1 or more"),
        ({"least": "9"}, "least must be 1 to the greatest depth, 8"),
        ({"depth": "0"}, "depth must be 1 or more"),
        ({"length": "3"}, "no option 'length': use memory, rise, least, nodes, depth"),
        ({"rise": "x"}, "option rise of controller 'adaptive' must be a whole number"),
    ):
        with pytest.raises(InvalidOption, match=says):
            Adaptive.create(ControllerContext(no_costs, options=options))
