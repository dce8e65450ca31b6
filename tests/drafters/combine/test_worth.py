"""When asking a second drafter pays."""

from __future__ import annotations

import pytest

from paceline.drafters.combine.fallback import PartEstimates


def asked(times: int, tokens: int, gain: float = 1.0, seconds: float = 0.1) -> PartEstimates:
    part = PartEstimates()
    for _ in range(times):
        part.spent(seconds, 0, 4)
        part.added.add(tokens)
        part.gate(gain).learn(tokens)
    return part


def test_it_is_tried_until_it_can_be_judged() -> None:
    part, tried = PartEstimates(), 0
    while part.due(9.0, 1.0, 0.5):
        part.spent(0.5, 0, 4)
        tried += 1
    assert tried == 9  # the first with all that was to be made ready, then four steps' time


@pytest.mark.parametrize(("tokens", "pays"), [(0, False), (1, True), (3, True)])
def test_what_it_added_decides(tokens: int, pays: bool) -> None:
    part = asked(100, tokens)
    assert part.pays(1.0, part.price(1.0, 0.0)) == pays


def test_what_it_adds_to_one_kind_of_draft_says_little_of_another() -> None:
    part = asked(100, 3, gain=5.0)
    for _ in range(20):
        part.gate(0.0).learn(0)
    assert part.adds(5.0) == pytest.approx(3, abs=0.2)
    assert part.adds(0.0) < 0.7
    assert part.adds(0.0, beside=True) == pytest.approx(3, abs=0.2)  # unknown: as of all


def test_the_more_there_is_the_more_it_must_add() -> None:
    part = asked(100, 1)
    assert part.pays(1.0, 0.45)
    assert not part.pays(1.9, 0.45)  # of the same kind
    assert not part.pays(1.0, 0.55)
    assert part.pays(1.0, 0.55, row=0.2)  # where a step with drafts takes longer in any case


def test_its_rows_and_what_it_must_read_are_part_of_its_price() -> None:
    part = asked(100, 1)
    for _ in range(20):
        part.rows.add(3)
        part.spent(2.1, 100, 4)
    assert part.price(1.0, 0.0) == pytest.approx(0.1)
    assert part.price(2.0, 0.0) == pytest.approx(0.05)
    assert part.price(1.0, 0.2) == pytest.approx(0.7)
    assert part.price(1.0, 0.0, 100) == pytest.approx(2.1)
    assert part.price(1.0, 0.0, 100, 10) == pytest.approx(0.3)


def test_it_is_tried_again_after_a_while_the_dearer_the_later() -> None:
    for trial, seldom in ((0.01, 16), (0.5, 100)):
        part = asked(100, 0)
        assert [part.due(1.0, 1.0, trial) for _ in range(seldom)] == [*[False] * (seldom - 1), True]


def test_a_stall_counts_as_four_times_the_usual() -> None:
    stalled, usual = asked(100, 1, seconds=0.1), asked(100, 1, seconds=0.1)
    stalled.spent(1e6, 0, 4)
    usual.spent(0.4, 0, 4)
    assert stalled.cost.value == pytest.approx(usual.cost.value)
