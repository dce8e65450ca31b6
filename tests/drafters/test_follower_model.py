"""Guesses from n-grams: against a search through the text, and how they are valued."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.methods.lookahead import FollowerModel, Place
from paceline.trees.candidates import FLOOR


def model(
    leader: int = 2, follower: int = 3, capacity: int = 1000, width: int = 8
) -> FollowerModel:
    prior = np.full((leader, width, follower), 0.4)
    return FollowerModel(leader, follower, capacity, width, prior)


def latest(text: list[int], leader: list[int], follower: int) -> list[list[int]]:
    """Runs of `follower` tokens behind every use of `leader`, the latest first, each once."""
    n = len(leader)
    found: list[list[int]] = []
    for start in range(len(text) - n - follower, -1, -1):
        run = text[start + n : start + n + follower]
        if text[start : start + n] == leader and run not in found:
            found.append(run)
    return found


def expected(text: list[int], tail: list[int], leader: int, follower: int) -> list[list[int]]:
    """Followers of the longest leader, then of the next shorter one."""
    runs = []
    for n in range(leader, 0, -1):
        if len(tail) >= n:
            runs += latest(text, tail[-n:], follower)
    return runs


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=25),
    st.integers(1, 3),
    st.integers(1, 3),
    st.lists(st.integers(1, 4), max_size=5),
    st.data(),
)
def test_paths_keep_to_the_followers_of_a_naive_search(
    text: list[int], leader: int, follower: int, cuts: list[int], data: st.DataObject
) -> None:
    known = model(leader, follower, width=30)
    begin = 0
    for cut in [*cuts, len(text)]:  # read in pieces
        end = min(len(text), begin + cut)
        known.read(text[:end], begin)
        begin = end
    path = list(text)
    place = known.place(path)
    for _ in range(2):
        runs = expected(text, path, leader, follower)
        for at in range(follower):
            offered = [token for token, _, _ in known.offers(place, 1.0)]
            firsts = list(dict.fromkeys(run[at] for run in runs))
            assert offered == firsts[: len(offered)]
            if not offered:
                assert not firsts
                return
            token = data.draw(st.sampled_from(offered))
            place = known.follow(place, token)
            path.append(token)
            runs = [run for run in runs if run[at] == token]


@given(st.lists(st.integers(0, 2), min_size=3, max_size=25), st.floats(0.001, 1))
def test_chances_are_for_the_cases_in_which_those_before_fail(
    text: list[int], reach: float
) -> None:
    known = model()
    known.read(text, 0)
    left = 1.0
    offered = known.offers(known.place(text), reach)
    for _, chance, (leader, rank, at) in offered:
        assert left * reach >= FLOOR
        assert math.isclose(chance, 0.4 * left)
        assert (leader in (0, 1), rank < 8, at) == (True, True, 0)
        left *= 0.6
    assert len({token for token, _, _ in offered}) == len(offered)


def test_the_cells_tell_leader_rank_and_place_apart() -> None:
    known = model()
    known.read([1, 2, 3, 4, 5, 8, 2, 6, 7, 9, 1, 2], 0)
    place = known.place([1, 2])
    assert [(token, cell) for token, _, cell in known.offers(place, 1.0)] == [
        (3, (1, 0, 0)),
        (6, (0, 0, 0)),
    ]
    assert [cell for _, _, cell in known.offers(known.follow(place, 6), 1.0)] == [(0, 0, 1)]


def test_single_runs_can_be_added() -> None:
    known = model(leader=1, follower=2)
    known.add((4,), (5, 6))
    place = known.place([4])
    assert known.offers(place, 1.0)[0][0] == 5
    assert known.offers(known.follow(place, 5), 1.0)[0][0] == 6
    assert known.offers(known.follow(known.follow(place, 5), 6), 1.0) == []


@pytest.mark.parametrize("capacity", [1, 4])
def test_leaders_beyond_the_capacity_are_forgotten(capacity: int) -> None:
    known = model(leader=1, follower=1, capacity=capacity)
    known.read(list(range(20)), 0)
    offering = [t for t in range(20) if known.offers(known.place([t]), 1.0)]
    assert offering == list(range(19 - capacity, 19))


def test_a_text_without_tokens_enough_teaches_nothing() -> None:
    known = model()
    known.read([1, 2, 3], 0)
    assert known.place([1]) == Place((1,), [], 0)
