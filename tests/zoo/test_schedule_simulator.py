"""The simulator: limits, closed forms, and the steps of real runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.schedules.machines import best, pearl_limit, sequential_limit
from benchmarks.schedules.measuring import truth_of
from benchmarks.schedules.simulator import (
    SCHEDULES,
    Costs,
    Curve,
    Event,
    Machine,
    Truth,
    plain,
)
from tests.zoo.test_schedules import PARAMS, PROMPTS, cpu, texts

from paceline.drafters.base import NoDrafter
from paceline.zoo.schedules.dovetail import Dovetail
from paceline.zoo.schedules.drafting import ChainDrafting, Here, Scheduled
from paceline.zoo.schedules.mirror import Mirror
from paceline.zoo.schedules.pearl import Pearl

FLAT = Curve([1, 2], [1.0, 1.0])
COSTS = Costs(Curve([1, 2, 4], [1.0, 1.1, 1.5]), Curve([1, 2], [0.3, 0.3]))


def test_curves() -> None:
    assert [COSTS.target(n) for n in (1, 2, 3, 4, 6)] == pytest.approx([1, 1.1, 1.3, 1.5, 1.9])
    assert Curve([1], [2.0])(5) == 2.0
    assert COSTS.target.times(2)(3) == pytest.approx(2.6)


def test_lanes_run_side_by_side_and_slow_each_other_down() -> None:
    one, two = (("target", 3.0),), (("draft", 1.0), ("link", 0.5))
    machine = Machine()
    machine.run(one, two)
    assert machine.now == 3.0
    assert Event("link", 1.0, 1.5) in machine.events
    machine = Machine({"target": 2.0, "draft": 2.0})
    machine.run(one, two)
    # The draft ends at 2, when the target has done 1 of its 3.
    assert machine.events == [
        Event("draft", 0.0, 2.0),
        Event("link", 2.0, 2.5),
        Event("target", 0.0, 4.0),
    ]


@pytest.mark.parametrize("window", [1, 3, 6])
def test_nothing_or_everything_is_accepted(window: int) -> None:
    never, always = Truth.drawn(2400, 0.0), Truth.drawn(2400, 1.0, 1.0)

    def seconds(name: str, truth: Truth, costs: Costs = COSTS) -> float:
        return SCHEDULES[name](truth, costs, window).per_token

    drafting = 0.3 * window
    assert plain(never, COSTS).per_token == pytest.approx(1)
    assert seconds("sequential", never) == pytest.approx(
        drafting + COSTS.target(window + 1), rel=0.01
    )
    assert seconds("pearl", never) == pytest.approx(max(1, drafting), rel=0.01)
    assert seconds("pearl", always) == pytest.approx(
        max(COSTS.target(window), drafting) / window, rel=0.01
    )
    assert seconds("sequential", always) == pytest.approx(
        (drafting + COSTS.target(window + 1)) / (window + 1), rel=0.01
    )
    # Every guess is right: only the draft that outlasts the other layers is waited for.
    layers = COSTS.target(window + 1) / 2
    assert seconds("mirror-sd", always) == pytest.approx(
        (layers + max(layers, drafting)) / (window + 1), rel=0.01
    )
    assert seconds("mirror-sd", never) == pytest.approx(
        drafting + layers + max(layers, drafting), rel=0.01
    )


def test_free_drafts_cost_the_target_alone() -> None:
    free, truth = Costs(FLAT, FLAT.times(0)), Truth.drawn(3000, 0.7, 0.5, seed=3)
    for name in ("sequential", "pearl", "mirror-sd"):
        run = SCHEDULES[name](truth, free, 4)
        assert run.seconds == pytest.approx(run.forwards)
        assert run.forwards + run.accepted == run.tokens


@pytest.mark.parametrize("right", [0.0, 0.3, 0.7, 0.9, 1.0])
@pytest.mark.parametrize("window", [1, 2, 4, 7])
def test_closed_forms(right: float, window: int) -> None:
    truth = Truth.drawn(60_000, right, seed=window)
    sequential = SCHEDULES["sequential"](truth, COSTS, window).per_token
    assert sequential == pytest.approx(sequential_limit(right, COSTS, window), rel=0.015)
    pearl = SCHEDULES["pearl"](truth, COSTS, window).per_token
    assert pearl == pytest.approx(pearl_limit(right, COSTS, window), rel=0.015)


def test_closed_forms_would_notice() -> None:
    """Negative control: a bonus token in post-verify, which PEARL does not have."""
    truth = Truth.drawn(60_000, 0.7, seed=1)
    found = SCHEDULES["pearl"](truth, COSTS, 4).per_token
    assert abs(found / pearl_limit(0.7, COSTS, 5) - 1) > 0.03


def test_the_best_window() -> None:
    truth = Truth.drawn(2000, 0.8, seed=4)
    window, run = best("pearl", truth, COSTS)
    assert all(run.seconds <= SCHEDULES["pearl"](truth, COSTS, w).seconds for w in range(1, 17))
    assert 2 <= window <= 5


@pytest.mark.parametrize("window", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ["pearl", "sequential", "mirror-sd"])
def test_steps_are_those_of_real_runs(name: str, window: int) -> None:
    """Forwards, rows, accepted tokens and waits of a text, by what is right in it."""
    target, worker = cpu(), Here(ChainDrafting(cpu("int4")))
    for seed, prompt in enumerate(PROMPTS):
        params = replace(PARAMS["sampled"], seed=seed)
        [text], _ = texts(target, NoDrafter(), params, [prompt])
        truth = truth_of(target, worker._chains.model, prompt, text, params, exit=2)
        assert 0.1 < sum(truth.right) / len(text) < 1
        drafter: Scheduled
        if name == "pearl":
            drafter = Pearl(worker, window=window)
        elif name == "sequential":
            drafter = Dovetail(worker, window=window)
        else:
            drafter = Mirror(worker, target=target, layers=4, window=window)
        _, [done] = texts(target, drafter, params, [prompt], nodes=16)
        run, stats = SCHEDULES[name](truth, COSTS, window), done.stats
        assert (run.forwards, run.accepted) == (stats.target_forwards, stats.accepted_tokens)
        assert run.rows == stats.target_forwards + stats.drafted_tokens
        if isinstance(drafter, Mirror):
            assert drafter.hits > 0
            assert run.waited == drafter.misses
