"""The bandit over draft sizes, in simulated environments where the best size is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.policy.environment import (
    Acceptance,
    Machine,
    Plain,
    fixed_rates,
    play,
    start,
    within,
)

from paceline.core.types import Budget, Speculation
from paceline.errors import InvalidOption
from paceline.methods.bandit import Bandit
from paceline.policy.controller import ControllerContext
from paceline.policy.cost import CostModel

SWITCHING = Machine(slope=0.05, switch=0.2)


def no_costs() -> CostModel:
    raise AssertionError("a bandit needs no measurement")


def always(chance: float) -> Acceptance:
    return lambda step, id: chance


@pytest.mark.parametrize("sequences", [1, 4])
def test_it_falls_back_to_plain_decoding_where_drafting_loses(sequences: int) -> None:
    machine = Machine(slope=0.1, switch=0.2)
    plain = play(Plain(), machine, always(0.02), sequences=sequences).rate
    for seed in range(2):
        run = play(Bandit(seed=seed), machine, always(0.02), sequences=sequences)
        assert run.share(0) > 0.7
        assert run.rate > 0.88 * plain


@pytest.mark.parametrize("sequences", [1, 4])
@pytest.mark.parametrize(("chance", "slope"), [(0.9, 0.03), (0.6, 0.05), (0.7, 0.02)])
def test_it_comes_near_the_best_fixed_size(chance: float, slope: float, sequences: int) -> None:
    machine = Machine(slope, switch=0.1)
    rates = fixed_rates(machine, always(chance), sequences)
    run = play(Bandit(), machine, always(chance), sequences=sequences)
    assert run.rate > 0.87 * max(rates.values())
    assert run.rate > 1.1 * rates[0]


def test_a_clear_best_size_is_found_and_kept() -> None:
    """Four tokens are free and the fifth is dear: neither end of the range is best."""
    cheap = Machine(slope=1.5, switch=0.3, free=5)
    rates = fixed_rates(cheap, always(0.9))
    assert max(rates, key=rates.__getitem__) == 4
    run = play(Bandit(), cheap, always(0.9))
    assert float((run.sizes[500:] == 4).mean()) > 0.8


def test_sequences_that_differ_get_different_sizes() -> None:
    """Better than any size for all."""

    def acceptance(step: int, id: int) -> float:
        return 0.9 if id < 2 else 0.05

    rates = fixed_rates(SWITCHING, acceptance, sequences=4)
    run = play(Bandit(), SWITCHING, acceptance, sequences=4)
    assert run.rate > 1.1 * max(rates.values())
    sizes = run.sizes[500:].mean(axis=0)
    assert sizes[:2].min() > 6
    assert sizes[2:].max() < 1.5


def test_drafts_shrink_as_the_batch_fills_the_machine() -> None:
    """Eight rows are free: one sequence drafts, eight do not."""
    machine = Machine(slope=0.5, free=8)
    alone = play(Bandit(), machine, always(0.7), sequences=1)
    crowd = play(Bandit(), machine, always(0.7), sequences=8, steps=800)
    assert alone.sizes[300:].mean() > 3
    assert crowd.sizes[300:].mean() < 1


def test_it_follows_a_text_that_changes() -> None:
    def acceptance(step: int, id: int) -> float:
        return (0.9, 0.02, 0.9)[step // 500]

    sizes = play(Bandit(), SWITCHING, acceptance).sizes.ravel()
    good, bad, again = (sizes[end - 150 : end].mean() for end in (500, 1000, 1500))
    assert good > 6
    assert bad < 2
    assert again > 6


def test_a_slow_minute_is_not_held_against_a_size() -> None:
    """Steps a thousand times as long, now and then, whatever was chosen."""

    class Hiccups(Machine):
        count = 0

        def seconds(self, rows: int, last: int | None) -> float:
            Hiccups.count += 1
            return super().seconds(rows, last) * (1000 if Hiccups.count % 200 == 150 else 1)

    run = play(Bandit(), Hiccups(slope=0.03), always(0.9))
    assert run.sizes[500:].mean() > 6


def test_choices_are_kept_for_some_steps() -> None:
    sizes = play(Bandit(keep=5), SWITCHING, always(0.6), steps=100).sizes.ravel()
    assert (sizes.reshape(-1, 5) == sizes[::5, None]).all()
    assert len(set(sizes)) > 2


def test_the_same_seed_makes_the_same_choices() -> None:
    first, second, other = (
        play(Bandit(seed=seed), SWITCHING, always(0.6), sequences=4, steps=200).sizes
        for seed in (3, 3, 4)
    )
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


@settings(max_examples=20)
@given(
    nodes=st.integers(1, 40),
    depth=st.integers(1, 12),
    chance=st.floats(0, 1),
    sequences=st.sampled_from([1, 4]),
)
def test_sizes_stay_within_limits(nodes: int, depth: int, chance: float, sequences: int) -> None:
    controller = Bandit(nodes=nodes, depth=depth)
    running = start(sequences)
    run = play(controller, SWITCHING, always(chance), sequences=running, steps=30)
    assert run.sizes.max() <= min(nodes, depth)
    assert all(within(b, Budget(nodes, depth)) for b in controller.budgets(running))
    assert controller.budgets([]) == []


def test_what_a_request_forbids_is_not_tried() -> None:
    """And its plain steps say nothing about the sizes that others use."""
    rules = [Speculation(enabled=False), Speculation(nodes=2), Speculation()]
    controller = Bandit()
    running = start(3, rules)
    run = play(controller, SWITCHING, always(0.9), sequences=running, steps=600)
    assert run.sizes[:, 0].max() == 0
    assert run.sizes[:, 1].max() == 2
    assert run.sizes[300:, 2].mean() > 6
    asked = {budget.nodes for _ in range(50) for budget in controller.budgets(running)[:2]}
    assert asked <= {0, 1, 2}


def test_ended_sequences_are_forgotten() -> None:
    controller = Bandit()
    running = start(2)
    play(controller, SWITCHING, always(0.5), sequences=running, steps=20)
    controller.close(running[0])
    play(controller, SWITCHING, always(0.5), sequences=running[1:], steps=20)
    assert list(controller._arms._own) == [1]


def test_it_is_built_from_options() -> None:
    made = Bandit.create(ControllerContext(no_costs, nodes=6, options={"keep": "2", "seed": "5"}))
    assert {budget.nodes for budget in made._arms_of} == {0, 1, 2, 4, 6}
    for options, says in (({"keep": "0"}, "keep must be"), ({"seed": "-1"}, "seed must be")):
        with pytest.raises(InvalidOption, match=says):
            Bandit.create(ControllerContext(no_costs, options=options))
