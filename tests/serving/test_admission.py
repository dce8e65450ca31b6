"""The gate: what is counted, refused and given back."""

from __future__ import annotations

import pytest

from paceline.errors import InvalidOption
from paceline.serving.admission import Busy, Closed, Gate


def opened(sequences: int = 2, tokens: int | None = None) -> Gate:
    gate = Gate(sequences, tokens)
    gate.closed = None
    return gate


def test_a_gate_is_closed_at_first() -> None:
    with pytest.raises(Closed, match="loading"):
        Gate(1, None).enter()


def test_sequences_are_limited_and_given_back() -> None:
    gate = opened()
    first = gate.enter()
    gate.enter()
    with pytest.raises(Busy, match="2 of 2"):
        gate.enter()
    assert gate.refused == 1
    first.leave()
    first.leave()  # twice is once
    assert gate.sequences == 1
    gate.enter()


def test_several_answers_count_each() -> None:
    gate = opened(4)
    ticket = gate.enter()
    ticket.hold(3, 0)
    assert gate.sequences == 3
    with pytest.raises(InvalidOption, match="ask for 4 or fewer"):
        ticket.hold(5, 0)
    assert gate.sequences == 3
    second = gate.enter()
    with pytest.raises(Busy):
        second.hold(2, 0)
    second.leave()
    ticket.leave()
    assert (gate.sequences, gate.tokens) == (0, 0)


def test_prompt_tokens_are_limited() -> None:
    gate = opened(9, 100)
    first = gate.enter()
    first.hold(1, 500)  # alone, whatever its size
    second = gate.enter()
    with pytest.raises(Busy, match="500 of 100"):
        second.hold(1, 1)
    first.leave()
    second.hold(1, 60)
    third = gate.enter()
    with pytest.raises(Busy):
        third.hold(1, 41)
    third.hold(1, 40)
    assert gate.tokens == 100


def test_what_never_fits_is_not_asked_to_wait() -> None:
    with pytest.raises(InvalidOption, match="2 or fewer"):
        opened().enter().hold(9, 0)


def test_sound_is_counted_beside_sequences() -> None:
    gate = Gate(4, None, 10.0)
    gate.closed = None
    first, second = gate.enter(), gate.enter()
    first.hold(1, 0, 30.0)  # longer than all of it, when nothing else is there
    with pytest.raises(Busy, match="30 of 10 seconds of sound"):
        second.hold(1, 0, 1.0)
    first.hold(1, 5)  # the sound is held on
    assert gate.seconds == 30.0
    first.leave()
    second.hold(1, 0, 1.0)
    second.leave()
    assert (gate.seconds, gate.sequences, gate.tokens) == (0.0, 0, 0)
