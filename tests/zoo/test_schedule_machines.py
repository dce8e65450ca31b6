"""Machines that are assumed, and what is said of drafts by the target's own layers."""

from __future__ import annotations

import pytest
from benchmarks.schedules.machines import (
    GOAL,
    asked,
    chance,
    cores,
    gpu,
    pearl_limit,
    self_speculation,
    sequential_limit,
)
from benchmarks.schedules.simulator import Costs, Curve, Truth

ONE = Costs(Curve([1, 8], [0.06, 0.08]), Curve([1, 8], [0.015, 0.02]), slowed=(2.0, 2.0))


def test_cores_share_the_work() -> None:
    eight = cores(ONE, 8)
    assert eight.target(1) == pytest.approx(0.0075)
    assert eight.slowed == (1.0, 1.0)
    assert gpu().target(1) == gpu().target(16) > gpu().draft(1)


def test_every_machine_is_asked() -> None:
    truth = Truth.drawn(1000, 0.8, 0.4)
    rows = asked(ONE, truth, (truth, Truth.drawn(1000, 0.78)))
    speeds = {(str(machine), str(name)): float(str(speed)) for machine, name, _, speed in rows}
    assert len({machine for machine, _ in speeds}) == 5
    assert ("two GPUs", "easyspec, drawn") in speeds
    # What shares the memory gains nothing from being at once.
    bound = "8 cores that wait for one memory"
    assert speeds[bound, "pearl"] < speeds[bound, "sequential"]
    # A free draft model: as many tokens as a window has.
    assert speeds["8 cores, draft model on a GPU", "dovetail"] > speeds[bound, "sequential"]


@pytest.mark.parametrize("limit", [sequential_limit, pearl_limit])
def test_the_cost_that_is_needed_is_enough_and_no_less(limit: object) -> None:
    at = 0 if limit is sequential_limit else 1
    row = self_speculation(ONE)[2 + at]  # rows are free
    right, needed = float(str(row[1])), float(str(row[4]))

    def speed(cost: float) -> float:
        costs = Costs(Curve([1], [1.0]), Curve([1], [cost]))
        return 1 / min(limit(right, costs, w) for w in range(1, 17))  # type: ignore[operator]

    assert speed(needed) > GOAL >= speed(needed + 0.01)


@pytest.mark.parametrize("right", [0.0, 0.4, 0.9])
def test_the_chance_behind_tokens_per_forward(right: float) -> None:
    assert chance(sum(right**power for power in range(4)), 3) == pytest.approx(right, abs=1e-9)
