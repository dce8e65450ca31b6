"""LRU cache of n-gram followers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as List

Run = tuple[int, ...]


class Followers:
    """Latest distinct followers per leader; drops those added longest ago."""

    def __init__(self, capacity: int, width: int) -> None:
        self._capacity = capacity
        self._width = width
        self._followers: OrderedDict[Run, list[Run]] = OrderedDict()

    def __len__(self) -> int:
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
        """Return the followers of `leader`, the latest first."""
        return self._followers.get(leader, ())
