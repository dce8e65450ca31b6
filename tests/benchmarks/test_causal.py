"""Delays and wrong words of captions."""

from __future__ import annotations

import pytest
from benchmarks.causal import Score, numbers, pieces, stays, words_of
from tests.listening.test_windows import noise

TOLD = [(1.0, "I saw"), (2.0, "I sow a"), (3.0, "I saw a cat"), (4.0, "I saw a cat.")]


def test_words_are_letters() -> None:
    assert words_of("It's a Cat - or  two.") == ["its", "a", "cat", "or", "two"]
    assert numbers("1,14") == [1, 14]


def test_a_word_is_there_once_it_stays() -> None:
    final = words_of(TOLD[-1][1])
    assert list(stays(TOLD, final)) == [(1.0, 1), (2.0, 1), (3.0, 4), (4.0, 4)]


def test_a_score_counts_words_and_delays() -> None:
    score = Score()
    score.add(TOLD, "I saw, the cat!", [0.5, 1.0, 1.5, 2.5])
    assert (score.wrong, score.words) == (1, 4)
    assert score.late == pytest.approx([0.5, 2.0, 0.5])
    assert score.row("x", 0.3) == ["x", 300, 25.0, 4, 1.0, 0.5]
    assert score.row("x", 0)[1] is None
    assert Score().row("x", 0.3)[2:] == [0.0, 0, None, None]


def test_pieces_come_one_after_another() -> None:
    sound = noise(0.25)
    found = list(pieces(sound, 1600))
    assert [at for at, _ in found] == [0.1, 0.2, 0.25]
    assert sum(len(each) for _, each in found) == len(sound)
