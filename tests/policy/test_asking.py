"""Whether drafts are worth making: what they cost against what they save."""

from __future__ import annotations

import pytest

from paceline.core.types import Budget
from paceline.policy.draft_gate import DraftCost, DraftGate


class Asking:
    """A gate and the cost of drafts, as the cost-model controller has them."""

    def __init__(self, hope: float = 1.0) -> None:
        self.gate, self.cost = DraftGate(hope, 50, 4, 16), DraftCost()

    def now(self) -> bool:
        return self.gate.open(self.cost.value)

    def learn(self, saved: float, cost: float, drafts: int = 1) -> None:
        self.cost.add(cost)
        self.gate.learn(saved, min(self.gate.steps * drafts, 16))
        self.gate.retry(saved > self.cost.value, drafts)


def share(asking: Asking, saved: float, cost: float, steps: int) -> float:
    """Of how many steps drafts were asked for."""
    asked = 0
    for _ in range(steps):
        if asking.now():
            asking.learn(saved, cost)
            asked += 1
    return asked / steps


def test_drafts_that_pay_are_always_asked_for() -> None:
    assert share(Asking(), saved=0.3, cost=0.1, steps=500) == 1


def test_drafts_that_never_pay_are_asked_for_at_first_and_then_now_and_then() -> None:
    asking = Asking()
    assert share(asking, saved=0.0, cost=0.1, steps=20) == 1
    share(asking, saved=0.0, cost=0.1, steps=400)
    assert share(asking, saved=0.0, cost=0.1, steps=320) == 1 / 16


@pytest.mark.parametrize("better", [0.15, 0.3, 5.0])
def test_what_pays_again_is_noticed_within_a_few_tries(better: float) -> None:
    asking = Asking()
    share(asking, saved=0.0, cost=0.1, steps=500)
    share(asking, saved=better, cost=0.1, steps=64)
    assert share(asking, saved=better, cost=0.1, steps=50) == 1


def test_a_draft_that_was_held_up_once_does_not_stop_the_others() -> None:
    asking = Asking()
    share(asking, saved=0.3, cost=0.1, steps=200)
    assert asking.now()
    asking.learn(0.3, 1000.0)
    assert share(asking, saved=0.3, cost=0.1, steps=50) == 1


def test_a_machine_that_got_slower_is_noticed() -> None:
    asking = Asking()
    share(asking, saved=0.3, cost=0.1, steps=200)
    share(asking, saved=0.3, cost=1.0, steps=300)
    assert share(asking, saved=0.3, cost=1.0, steps=320) < 0.1


def test_without_hope_drafts_must_show_first_that_they_pay() -> None:
    asking = Asking(0.0)
    asked = 0
    for _ in range(64):
        if asking.now():
            asking.learn(0.0, 0.1, drafts=8)
            asked += 1
    assert asked <= 8
    for _ in range(160):
        if asking.now():
            asking.learn(0.3, 0.1, drafts=8)
    assert all(asking.now() for _ in range(10))


def asked(asking: Asking, saved: float, steps: int, drafts: int) -> list[bool]:
    """Of each step of a batch, whether drafts were asked for; they cost 0.1 s."""
    out = []
    for _ in range(steps):
        out.append(asking.now())
        if out[-1]:
            asking.learn(saved, 0.1, drafts)
    return out


@pytest.mark.parametrize("drafts", [2, 8])
def test_a_draft_of_a_batch_that_is_good_by_chance_starts_no_run_of_asks(drafts: int) -> None:
    asking = Asking()
    asked(asking, 0.0, 1000, drafts)
    while not any(asked(asking, 0.3, 1, drafts)):
        pass
    assert 1 <= sum(asked(asking, 0.0, 16, drafts)) <= 2


def test_a_sequence_is_asked_again_at_once() -> None:
    """Its drafts are good in runs."""
    asking = Asking()
    asked(asking, 0.0, 400, drafts=1)
    while not any(asked(asking, 0.11, 1, drafts=1)):
        pass
    assert asking.now()


@pytest.mark.parametrize("drafts", [2, 8])
def test_a_batch_finds_a_run_within_a_few_asks(drafts: int) -> None:
    asking = Asking()
    asked(asking, 0.0, 1000, drafts)
    found = asked(asking, 0.15, 300, drafts)
    begin = next(step for step in range(300) if all(found[step:]))
    assert begin < 100
    assert sum(found[:begin]) <= 4


def test_a_drafter_learns_from_one_plain_step_in_eight() -> None:
    gate, plain = DraftGate.of_learning(), [Budget(0, 0)] * 2
    assert [gate.learns(plain) for _ in range(16)] == [*[False] * 7, True] * 2
    assert all(gate.learns([Budget(0, 0), Budget(2, 1)]) for _ in range(3))
    assert not any(gate.learns(plain) for _ in range(7))
