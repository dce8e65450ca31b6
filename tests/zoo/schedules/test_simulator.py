"""Schedules against closed forms, and against each other in limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.errors import InvalidOption
from paceline.zoo.hierarchy import seconds_per_token as expected
from paceline.zoo.hierarchy import tokens_per_round
from paceline.zoo.schedules.simulator import (
    SCHEDULES,
    Machine,
    Setting,
    best_length,
    pearl,
    pearl_adaptive,
    seconds_per_token,
    sequential,
)


def forward(rows: int) -> float:
    return 1.0 + 0.05 * (rows - 1)


MIXED = Setting(forward, draft=0.2, chance=0.7, length=4)


def test_devices_work_side_by_side_and_slow_each_other_down() -> None:
    machine = Machine({"target": 1.5, "draft": 1.5})
    one, two = machine.start("target", 1.0), machine.start("draft", 0.4)
    machine.wait(two)
    assert machine.now == pytest.approx(0.6)  # both at two thirds of their speed
    machine.wait(one)
    assert machine.now == pytest.approx(0.6 + 0.6)  # what is left of the first, alone
    apart = Machine({"draft": 3.0})
    apart.wait(apart.start("target", 1.0), apart.start("draft", 1.0))
    assert apart.now == pytest.approx(1 + 2 / 3)
    queued = [machine.start("draft", 0.5) for _ in range(2)]
    machine.wait(*queued)
    assert machine.now == pytest.approx(2.2)
    with pytest.raises(InvalidOption):
        Machine({"draft": 0.5})


@pytest.mark.parametrize("chance", [0.0, 0.3, 0.7, 1.0])
def test_sequential_is_the_closed_form(chance: float) -> None:
    setting = replace(MIXED, chance=chance)
    found = seconds_per_token(sequential, setting)
    assert found == pytest.approx(expected(0.2, forward, chance, 4), rel=0.02)


@pytest.mark.parametrize("draft", [0.2, 0.5])
def test_pearl_in_limits(draft: float) -> None:
    """Perfect drafts: a window a round, at the time of the slower; useless ones: plain decoding."""
    perfect = replace(MIXED, chance=1.0, draft=draft)
    assert seconds_per_token(pearl, perfect) == pytest.approx(
        max(forward(4), 4 * draft) / 4, rel=0.01
    )
    useless = replace(MIXED, chance=0.0, draft=draft)
    assert seconds_per_token(pearl, useless) == pytest.approx(max(1.0, 4 * draft), rel=0.01)


def test_pearl_is_the_mean_of_its_two_states() -> None:
    """From the chances of its chain: after a rejection a token, else a window's run."""
    a, n = MIXED.chance, MIXED.length
    # Stationary share of rounds that verify a window, q: entered by a right first token.
    stay = a**n
    share = a / (1 + a - stay)
    tokens = (1 - share) + share * (tokens_per_round(a, n - 1) + 0.0)
    seconds = (1 - share) * max(1.0, n * 0.2) + share * max(forward(n), n * 0.2)
    assert seconds_per_token(pearl, MIXED) == pytest.approx(seconds / tokens, rel=0.02)


def test_adaptive_drafting_ends_with_the_forward() -> None:
    """Five drafted tokens fit in a forward: as windows of five, as far as rows cost nothing."""
    flat = Setting(lambda rows: 1.0, draft=0.2, chance=0.8, length=5)
    assert seconds_per_token(pearl_adaptive, flat) == pytest.approx(
        seconds_per_token(pearl, flat), rel=0.02
    )


def test_orders_that_must_hold() -> None:
    free = replace(MIXED, draft=0.0)
    time = {name: seconds_per_token(each, MIXED) for name, each in SCHEDULES.items()}
    assert time["plain"] == pytest.approx(1.0)
    # Without a link Dovetail is sequential, and so is EasySpec without its gain and calibration.
    assert time["Dovetail"] == pytest.approx(time["sequential"], rel=0.02)
    assert seconds_per_token(SCHEDULES["EasySpec"], replace(free, fuzzy=1.0)) == pytest.approx(
        seconds_per_token(sequential, free), rel=0.02
    )
    far = seconds_per_token(SCHEDULES["Dovetail"], replace(MIXED, link=0.5))
    assert far == pytest.approx(time["Dovetail"] + 1.0 / tokens_per_round(0.7, 4), rel=0.02)
    # Mirror-SD hides drafting where drafts stand, and is sequential where its exit never hits.
    assert time["Mirror-SD"] < time["sequential"]
    never = seconds_per_token(SCHEDULES["Mirror-SD"], replace(MIXED, hit=0.0))
    assert never == pytest.approx(time["sequential"], rel=0.02)
    # Two devices that wait for one memory gain nothing from working side by side.
    both = {"target": 2.0, "draft": 2.0}
    alone, shared = (seconds_per_token(pearl, MIXED, slowdown=each) for each in ({}, both))
    assert shared > 1.5 * alone


def test_the_best_length_is_longer_for_better_drafts() -> None:
    lengths = [best_length(sequential, replace(MIXED, chance=a))[0] for a in (0.3, 0.6, 0.9)]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[2]
