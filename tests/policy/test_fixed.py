"""The fixed controller: what was asked for, every step."""

from __future__ import annotations

import pytest
from tests.helpers.steps import step_of

from paceline.core import tree as trees
from paceline.core.types import Budget, SamplingParams, Verdict
from paceline.errors import InvalidOption
from paceline.policy.controller import ControllerContext, Fixed
from paceline.policy.cost import CostModel
from paceline.sampling.generation import Generation


def no_costs() -> CostModel:
    raise AssertionError("a fixed size needs no measurement")


def batch(size: int) -> list[Generation]:
    return [Generation.start(i, [1], SamplingParams()) for i in range(size)]


@pytest.mark.parametrize(
    ("nodes", "depth", "budget"),
    [(8, 3, Budget(8, 3)), (5, None, Budget(5, 5)), (None, 4, Budget(4, 4))],
)
def test_one_figure_stands_for_both(nodes: int | None, depth: int | None, budget: Budget) -> None:
    controller = Fixed.create(ControllerContext(no_costs, nodes, depth))
    assert controller.budgets(batch(3)) == [budget] * 3
    assert controller.budgets([]) == []


def test_a_size_is_needed() -> None:
    with pytest.raises(InvalidOption, match="give nodes, depth or both"):
        Fixed.create(ControllerContext(no_costs))


@pytest.mark.parametrize(
    ("nodes", "depth", "name"), [(0, 1, "nodes"), (1, 0, "depth"), (None, -2, "depth")]
)
def test_sizes_below_one_are_named(nodes: int | None, depth: int | None, name: str) -> None:
    with pytest.raises(InvalidOption, match=f"{name} must be 1 or more"):
        Fixed.create(ControllerContext(no_costs, nodes, depth))


def test_drafts_pass_and_nothing_is_learned() -> None:
    controller = Fixed(4, 2)
    [sequence] = batch(1)
    draft = trees.chain([1, 2])
    assert controller.select([sequence], [draft])[0] is draft
    controller.observe(step_of([sequence], [draft], [Verdict((), 3)]), 1.0, 1.0)
    controller.close(sequence)
    assert controller.budgets([sequence]) == [Budget(4, 2)]


def test_sizes_may_be_options() -> None:
    def made(**options: str) -> Fixed:
        return Fixed.create(ControllerContext(no_costs, nodes=9, options=options))

    assert made(depth="3").budgets(batch(1)) == [Budget(9, 3)]
    assert made(nodes="4").budgets(batch(1)) == [Budget(4, 4)]
    with pytest.raises(InvalidOption, match="nodes must be 1 or more"):
        made(nodes="0")
    with pytest.raises(InvalidOption, match="controller 'fixed' has no option 'size'"):
        made(size="4")
