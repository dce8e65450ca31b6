"""N-gram cache model: candidates are the recent followers of the last tokens (Cacheback)."""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import NamedTuple

from paceline.drafters.best_first import FLOOR, Offer
from paceline.drafters.followers import Followers, Run
from paceline.drafters.statistics import HitRates
from paceline.types import ProbArray


class _Course(NamedTuple):
    # A follower that the path agrees with so far; rank 0 is the latest of its leader.

    follower: Run
    leader: int
    rank: int


class Place(NamedTuple):
    """State of a path: last tokens, and followers whose first `at` tokens end it, best first."""

    tail: Run
    courses: List[_Course]
    at: int


class FollowerModel:
    """Recent runs of `follower` tokens after leaders of 1 to `leader` tokens.

    `rates` are by leader length, rank of the follower, and token in it.
    """

    def __init__(
        self, leader: int, follower: int, capacity: int, width: int, prior: ProbArray
    ) -> None:
        """Create an empty cache; `prior` is float64 `[leader, width, follower]`."""
        self._leader = leader
        self._follower = follower
        self._cache = Followers(capacity, width)
        self.rates = HitRates(prior, weight=16.0)

    def read(self, tokens: List[int], begin: int) -> None:
        """Learn all runs whose last token has position `begin` or later."""
        for end in range(max(begin, self._follower) + 1, len(tokens) + 1):
            middle = end - self._follower
            follower = tuple(tokens[middle:end])
            for length in range(1, min(self._leader, middle) + 1):
                self._cache.add(tuple(tokens[middle - length : middle]), follower)

    def add(self, leader: Run, follower: Run) -> None:
        self._cache.add(leader, follower)

    def place(self, tokens: List[int]) -> Place:
        return self._look_up(tuple(tokens[-self._leader :]))

    def follow(self, place: Place, token: int) -> Place:
        tail = (*place.tail, token)[-self._leader :]
        at = place.at + 1
        if at == self._follower:
            return self._look_up(tail)
        courses = [course for course in place.courses if course.follower[place.at] == token]
        return Place(tail, courses, at)

    def offers(self, place: Place, reach: float) -> List[Offer]:
        """Return the candidates after a place of path probability `reach`."""
        rates = self.rates.table
        offers: list[Offer] = []
        offered: set[int] = set()
        left = 1.0
        for follower, leader, rank in place.courses:
            if left * reach < FLOOR:
                break
            token = follower[place.at]
            if token not in offered:
                rate = rates[leader - 1][rank][place.at]
                offers.append((token, left * rate, (leader - 1, rank, place.at)))
                offered.add(token)
                left *= 1 - rate
        return offers

    def _look_up(self, tail: Run) -> Place:
        courses = [
            _Course(follower, length, rank)
            for length in range(len(tail), 0, -1)
            for rank, follower in enumerate(self._cache.after(tail[-length:]))
        ]
        return Place(tail, courses, 0)
