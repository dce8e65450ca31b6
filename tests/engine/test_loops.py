"""Loops at the end of a text, beside a plain search for them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.engine.stopping import WINDOW, ends_in_loop


def ends_in_loop_plainly(tokens: Sequence[int]) -> bool:
    """Compares every token of every span with the one a period before it."""
    for period in range(1, 129):
        span = max(3 * period, 24)
        if span <= len(tokens):
            last = tokens[len(tokens) - span :]
            if all(last[i] == last[i - period] for i in range(period, span)):
                return True
    return False


@given(
    before=st.lists(st.integers(0, 2), max_size=40),
    run=st.lists(st.integers(0, 2), min_size=1, max_size=140),
    times=st.integers(1, 30),
    cut=st.integers(0, 30),
)
def test_loops_are_those_of_a_plain_search(
    before: list[int], run: list[int], times: int, cut: int
) -> None:
    tokens = [*before, *(run * times)][: -cut or None]
    assert ends_in_loop(tokens) == ends_in_loop_plainly(tokens)
    assert ends_in_loop(tokens[-WINDOW:]) == ends_in_loop(tokens)


@pytest.mark.parametrize(
    ("period", "length"), [(1, 24), (5, 24), (8, 24), (9, 27), (40, 120), (128, 384)]
)
def test_a_loop_is_seen_with_its_last_token_and_not_before(period: int, length: int) -> None:
    tokens = [777, *(n % period for n in range(length))]
    assert ends_in_loop(tokens)
    assert not ends_in_loop(tokens[:-1])
    assert not ends_in_loop([*tokens[:-1], 777])


def test_what_comes_twice_is_no_loop_and_neither_is_a_period_of_more_than_128() -> None:
    assert not ends_in_loop([])
    assert not ends_in_loop(list(range(60)) * 2)
    assert not ends_in_loop(list(range(129)) * 3)
