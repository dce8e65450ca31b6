"""What followed a few tokens when they were last seen: a cache that forgets the oldest."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as List

Run = tuple[int, ...]
"""Consecutive tokens."""


class Followers:
    """Leaders and, for each, its latest distinct followers; a leader takes 250 to 800 bytes.

    A leader beyond the capacity pushes out the one that was added to longest ago, and a follower
    beyond the width the one of its leader that was added longest ago.
    """

    def __init__(self, capacity: int, width: int) -> None:
        """An empty cache of up to `capacity` leaders with up to `width` followers each."""
        self._capacity = capacity
        self._width = width
        self._followers: OrderedDict[Run, list[Run]] = OrderedDict()

    def __len__(self) -> int:
        """Number of leaders."""
        return len(self._followers)

    def add(self, leader: Run, follower: Run) -> None:
        """Make `follower` the latest of `leader`, and `leader` the latest of all."""
        known = self._followers.get(leader)
        if known is None:
            if len(self._followers) == self._capacity:
                self._followers.popitem(last=False)
            self._followers[leader] = [follower]
            return
        self._followers.move_to_end(leader)
        if follower in known:
            known.remove(follower)
        elif len(known) == self._width:
            known.pop()
        known.insert(0, follower)

    def after(self, leader: Run) -> List[Run]:
        """Followers of `leader`, the latest first."""
        return self._followers.get(leader, ())
