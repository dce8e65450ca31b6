"""Draft length from recent acceptance: the rule, and how it behaves."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.steps import step_of
from tests.policy.environment import Machine, play, start, within

from paceline.core import tree as trees
from paceline.core.types import Budget, Verdict
from paceline.errors import InvalidOption
from paceline.methods.adaptive import Adaptive
from paceline.policy.controller import ControllerContext
from paceline.policy.cost import CostModel
from paceline.sampling.generation import Generation


def no_costs() -> CostModel:
    raise AssertionError("a length needs no measurement")


def naive(steps: list[tuple[int, int]], memory: float, rise: int, least: int, depth: int) -> int:
    """The length after (drafted, accepted) steps, by sums over the whole past."""
    steps = [(drafted, accepted) for drafted, accepted in steps if drafted]
    if not steps:
        return depth
    weights = [(1 - memory) * memory**age for age in range(len(steps))]
    weights[-1] = memory ** (len(steps) - 1)
    past = list(zip(reversed(steps), weights, strict=True))
    drafted = sum(weight * each[0] for each, weight in past)
    accepted = sum(weight * each[1] for each, weight in past)
    raised = rise if accepted >= drafted else 0
    return min(depth, max(least, math.floor(drafted) + raised))


@settings(max_examples=100)
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
        controller.observe(step_of([sequence], [trees.chain([0] * drafted)], [verdict]), 0.0, 1.0)
    length = naive(steps, memory, rise, least, depth)
    assert controller.budgets([sequence]) == [Budget(length, length)]


def told(controller: Adaptive, sequence: Generation, drafted: int, accepted: int) -> int:
    """The length after a step more."""
    draft, verdict = trees.chain([0] * drafted), Verdict(tuple(range(accepted)), 0)
    controller.observe(step_of([sequence], [draft], [verdict]), 0.0, 1.0)
    return controller.budgets([sequence])[0].depth


def test_the_constants_are_those_of_the_paper() -> None:
    controller, [sequence] = Adaptive(), start(1)
    assert controller.budgets([sequence]) == [Budget(30, 30)]
    lengths = [told(controller, sequence, 30, 0)]  # G = 30
    lengths += [told(controller, sequence, 16, 0)]  # (30 + 16) / 2
    lengths += [told(controller, sequence, 5, 0)]  # 14, but 20 at least
    assert lengths == [30, 23, 20]
    controller.close(sequence)
    assert told(controller, sequence, 22, 22) == 30  # 22 + 10, but 30 at most


def test_it_shrinks_with_what_is_drafted_alone_and_grows_by_whole_drafts() -> None:
    controller, [sequence] = Adaptive(memory=0.0, rise=2, least=1, depth=8, nodes=8), start(1)
    assert told(controller, sequence, 8, 0) == 8  # nothing was accepted
    assert told(controller, sequence, 3, 0) == 3
    assert told(controller, sequence, 3, 2) == 3
    assert told(controller, sequence, 3, 3) == 5
    assert told(controller, sequence, 5, 5) == 7


def test_each_sequence_has_its_own_length() -> None:
    controller, running = Adaptive(least=1), start(2)
    told(controller, running[0], 3, 0)
    assert [each.depth for each in controller.budgets(running)] == [3, 30]


@settings(max_examples=20)
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
    controller = Adaptive(nodes=24, depth=8, least=1)
    [sequence] = start(1)
    assert controller.budgets([sequence]) == [Budget(24, 8)]
    controller.observe(step_of([sequence], [trees.chain([0])], [Verdict((), 0)]), 0.0, 1.0)
    assert controller.budgets([sequence]) == [Budget(3, 1)]


def test_closed_sequences_are_forgotten() -> None:
    controller, running = Adaptive(least=1), start(2)
    for sequence in running:
        told(controller, sequence, 2, 0)
    controller.close(running[0])
    controller.close(running[0])
    assert [budget.depth for budget in controller.budgets(running)] == [30, 2]


def test_it_is_built_from_options() -> None:
    made = Adaptive.create(ControllerContext(no_costs, depth=6, options={"least": "5"}))
    assert made.budgets(start(1)) == [Budget(6, 6)]
    for options, says in (
        ({"memory": "1"}, "memory must be in"),
        ({"rise": "0"}, "rise must be 1 or more"),
        ({"least": "0"}, "least must be 1 or more"),
        ({"depth": "0"}, "depth must be 1 or more"),
        ({"length": "3"}, "no option 'length': use memory, rise, least, nodes, depth"),
        ({"rise": "x"}, "option rise of controller 'adaptive' must be a whole number"),
    ):
        with pytest.raises(InvalidOption, match=says):
            Adaptive.create(ControllerContext(no_costs, options=options))
