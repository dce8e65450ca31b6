"""When asking a second drafter pays."""

from __future__ import annotations

import pytest

from paceline.policy.draft_gate import MarginalGain


def asked(times: int, tokens: int, gain: float = 1.0, seconds: float = 0.1) -> MarginalGain:
    worth = MarginalGain()
    for _ in range(times):
        worth.asked(gain, seconds)
        worth.learn(gain, tokens)
    return worth


def test_it_is_asked_until_its_price_is_known() -> None:
    worth = MarginalGain()
    assert worth.pays(9.0, 1.0)
    worth.asked(0.0, 50.0)  # with all that was to be made ready
    assert worth.pays(9.0, 1.0)
    worth.asked(0.0, 50.0)
    assert not worth.pays(9.0, 1.0)


@pytest.mark.parametrize(("tokens", "pays"), [(0, False), (1, True), (3, True)])
def test_what_it_added_decides(tokens: int, pays: bool) -> None:
    assert asked(100, tokens).pays(1.0, 1.0) == pays


def test_what_it_adds_to_one_kind_of_draft_says_nothing_of_another() -> None:
    worth = asked(100, 0, gain=5.0)
    assert not worth.pays(5.0, 1.0)
    assert worth.pays(0.0, 1.0)


def test_the_more_there_is_the_more_it_must_add() -> None:
    worth = asked(100, 1, gain=1.0)
    assert worth.pays(1.0, 0.33)
    assert not worth.pays(1.9, 0.33)  # of the same kind
    assert worth.pays(1.9, 1.0)
    assert not worth.pays(1.0, 0.05)


def test_it_is_asked_again_after_a_while() -> None:
    worth = asked(100, 0)
    for _ in range(15):
        worth.passed_over(1.0)
        assert not worth.pays(1.0, 1.0)
    worth.passed_over(1.0)
    assert worth.pays(1.0, 1.0)
    worth.asked(1.0, 0.1)
    assert not worth.pays(1.0, 1.0)


def test_a_stall_counts_as_four_times_the_usual() -> None:
    worth = asked(100, 1, seconds=0.1)
    worth.asked(1.0, 1e6)
    assert worth.seconds == pytest.approx(0.1 + 0.3 / 32)
