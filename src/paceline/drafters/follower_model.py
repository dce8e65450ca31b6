"""Guesses from a cache of recent n-grams: what followed the last tokens follows them again."""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import NamedTuple

from paceline.drafters.best_first import FLOOR, Offer
from paceline.drafters.followers import Followers, Run
from paceline.drafters.statistics import HitRates
from paceline.types import ProbArray


class _Course(NamedTuple):
    """A follower that a path has kept to so far.

    Attributes:
        follower: the whole run.
        leader: length of its leader.
        rank: 0 for the latest of its leader.
    """

    follower: Run
    leader: int
    rank: int


class Place(NamedTuple):
    """Where a path stands.

    Attributes:
        tail: its last tokens, as many as the longest leader has.
        courses: followers whose first `at` tokens end the path, the best guides first.
        at: see above; less than the length of a follower.
    """

    tail: Run
    courses: List[_Course]
    at: int


class FollowerModel:
    """Recent runs of `follower` tokens behind leaders of 1 to `leader` tokens.

    A path that has begun a follower keeps to it, beside others that agree so far; at its end the
    cache is asked again.

    Attributes:
        rates: hit rates by length of leader, rank of follower, and token in it.
    """

    def __init__(
        self, leader: int, follower: int, capacity: int, width: int, prior: ProbArray
    ) -> None:
        """Know nothing.

        Args:
            leader: tokens of the longest leader.
            follower: tokens of a follower.
            capacity: most leaders to keep.
            width: most followers to keep of one.
            prior: float64 `[leader, width, follower]`, hit rates to start from.
        """
        self._leader = leader
        self._follower = follower
        self._cache = Followers(capacity, width)
        self.rates = HitRates(prior, weight=16.0)

    def read(self, tokens: List[int], begin: int) -> None:
        """Learn from text: all runs whose last token has position `begin` or later."""
        for end in range(max(begin, self._follower) + 1, len(tokens) + 1):
            middle = end - self._follower
            follower = tuple(tokens[middle:end])
            for length in range(1, min(self._leader, middle) + 1):
                self._cache.add(tuple(tokens[middle - length : middle]), follower)

    def add(self, leader: Run, follower: Run) -> None:
        """Learn one run."""
        self._cache.add(leader, follower)

    def place(self, tokens: List[int]) -> Place:
        """Where `tokens` ends."""
        return self._look_up(tuple(tokens[-self._leader :]))

    def follow(self, place: Place, token: int) -> Place:
        """The place behind `token`."""
        tail = (*place.tail, token)[-self._leader :]
        at = place.at + 1
        if at == self._follower:
            return self._look_up(tail)
        courses = [course for course in place.courses if course.follower[place.at] == token]
        return Place(tail, courses, at)

    def offers(self, place: Place, reach: float) -> List[Offer]:
        """What may come after a place that decoding reaches with probability `reach`."""
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
