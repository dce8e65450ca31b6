"""Timestamps as a constraint, and the segments that they cut."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.errors import InvalidOption
from paceline.listening.timestamps import Segment, TranscriptRules, segments_of

# Words are 0 to 19, of which 7 is no speech; the text ends with 20, and times begin at 21.
RULES = TranscriptRules(vocabulary=121, end=20, times=21, suppressed=(7,), first=(3, 20))
WORDS = set(range(20)) - {7}


def allowed(*said: int, rules: TranscriptRules = RULES) -> set[int]:
    state = rules.start()
    found = set(np.flatnonzero(state.mask(said)).tolist())
    state.commit(said)
    assert set(np.flatnonzero(state.mask()).tolist()) == found  # a path is as good as a text
    return found


def test_a_text_begins_in_the_first_second() -> None:
    assert allowed() == set(range(21, 72))


def test_words_follow_the_first_time() -> None:
    assert allowed(25) == WORDS | {20}


def test_a_segment_ends_behind_its_beginning() -> None:
    assert allowed(25, 4) == WORDS | {20} | set(range(26, 121))


def test_a_segment_that_ended_is_followed_by_another_or_by_the_end() -> None:
    assert allowed(25, 4, 60) == {20} | set(range(60, 121))
    assert allowed(25, 4, 60, 60) == WORDS | {20}
    assert allowed(25, 4, 60, 60, 5) == WORDS | {20} | set(range(61, 121))


def test_after_the_end_comes_the_end() -> None:
    assert allowed(25, 4, 60, 20) == {20}


def test_without_timestamps_there_are_none() -> None:
    plain = TranscriptRules(121, 20, 21, (7,), (3, 20), timed=False)
    assert allowed(rules=plain) == WORDS - {3}
    assert allowed(4, rules=plain) == WORDS | {20}


def test_only_what_is_allowed_is_valid() -> None:
    state = RULES.start()
    assert state.valid([25, 4, 60, 60]) == 4
    assert state.valid([25, 4, 60, 59]) == 3  # times never fall
    assert state.valid([25, 7]) == 1
    assert state.valid([90]) == 0
    assert state.mask([90]).all()
    with pytest.raises(InvalidOption, match="rules of timestamps"):
        state.commit([25, 4, 24])
    state.commit([25, 4])
    assert state.valid([60, 60]) == 2
    assert state.valid([25]) == 0


def test_segments_lie_between_times() -> None:
    found, heard = segments_of([21, 1, 2, 71, 71, 3, 120, 20], 20, 21, 30.0)
    assert found == [Segment(0, 1.0, (1, 2)), Segment(1.0, 1.98, (3,))]
    assert heard == 30.0


def test_a_window_ends_where_a_segment_was_begun() -> None:
    found, heard = segments_of([21, 1, 71, 71], 20, 21, 30.0)
    assert found == [Segment(0, 1.0, (1,))]
    assert heard == 1.0


def test_words_without_an_end_last_to_that_of_the_window() -> None:
    assert segments_of([21, 1, 71, 71, 4], 20, 21, 12.5) == (
        [Segment(0, 1.0, (1,)), Segment(1.0, 12.5, (4,))],
        12.5,
    )
    assert segments_of([21, 20], 20, 21, 12.5) == ([], 12.5)
