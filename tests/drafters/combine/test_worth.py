"""When asking a second drafter pays."""

from __future__ import annotations

import pytest

from paceline.drafters.combine.fallback import PartEstimates


def asked(times: int, tokens: int, gain: float = 1.0, seconds: float = 0.1) -> PartEstimates:
    part = PartEstimates()
    for _ in range(times):
        part.cost.add(seconds)
        part.gate(gain).learn(tokens)
    return part


def test_it_is_asked_until_its_price_is_known() -> None:
    part = PartEstimates()
    assert part.pays(9.0, 1.0)
    part.cost.add(50.0)  # with all that was to be made ready
    assert part.pays(9.0, 1.0)
    part.cost.add(50.0)
    assert not part.pays(9.0, 1.0)


@pytest.mark.parametrize(("tokens", "pays"), [(0, False), (1, True), (3, True)])
def test_what_it_added_decides(tokens: int, pays: bool) -> None:
    assert asked(100, tokens).pays(1.0, 1.0) == pays


def test_what_it_adds_to_one_kind_of_draft_says_nothing_of_another() -> None:
    part = asked(100, 0, gain=5.0)
    assert not part.pays(5.0, 1.0)
    assert part.pays(0.0, 1.0)


def test_the_more_there_is_the_more_it_must_add() -> None:
    part = asked(100, 1, gain=1.0)
    assert part.pays(1.0, 0.25)
    assert not part.pays(1.9, 0.25)  # of the same kind
    assert part.pays(1.9, 1.0)
    assert not part.pays(1.0, 0.05)


def test_it_is_asked_again_after_a_while() -> None:
    part = asked(100, 0)
    assert [part.pays(1.0, 1.0) for _ in range(48)] == [*[False] * 15, True] * 3


def test_a_stall_counts_as_four_times_the_usual() -> None:
    stalled, usual = asked(100, 1, seconds=0.1), asked(100, 1, seconds=0.1)
    stalled.cost.add(1e6)
    usual.cost.add(0.4)
    assert stalled.cost.value == pytest.approx(usual.cost.value)
