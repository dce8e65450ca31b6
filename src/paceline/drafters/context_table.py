"""What came next after a context, averaged over the times it was seen; of bounded size."""

from __future__ import annotations

from collections import OrderedDict
from operator import itemgetter

WIDTH = 8
"""Tokens kept per context."""

_PAST = 1.0
"""Most weight that the past has beside something new. At 1, what is seen once more is worth half
of the average: text changes, and the latest rows know best."""

Context = tuple[int, ...]
"""The tokens before some position, the nearest last."""

Law = dict[int, float]
"""Shares of tokens, the likeliest first."""

_share = itemgetter(1)


class ContextTable:
    """Averaged laws of the next token by context, cut to their likeliest tokens.

    A full table drops the context that was written longest ago.
    """

    def __init__(self, capacity: int) -> None:
        """An empty table for up to `capacity` contexts."""
        self._capacity = capacity
        self._known: OrderedDict[Context, tuple[Law, float]] = OrderedDict()

    def __len__(self) -> int:
        """Number of contexts."""
        return len(self._known)

    def look(self, context: Context) -> tuple[Law, float] | None:
        """What is known of a context: shares of its likeliest tokens, and what they weigh."""
        return self._known.get(context)

    def add(self, context: Context, law: Law, weight: float) -> None:
        """Average a law into the table.

        Args:
            context: as the latest that was written.
            law: the likeliest tokens after it.
            weight: how much the law counts beside what was seen before.
        """
        known, total = self._known.pop(context, ({}, 0.0))
        if len(self._known) == self._capacity:
            self._known.popitem(last=False)
        past = min(total, _PAST)
        whole = past + weight
        mixed = [(t, weight * share / whole) for t, share in law.items() if t not in known]
        for token, share in known.items():
            mixed.append((token, (past * share + weight * law.get(token, 0.0)) / whole))
        mixed.sort(key=_share, reverse=True)  # of equal ones the new first
        best = {token: share for token, share in mixed[:WIDTH] if share > 0}
        self._known[context] = best, total + weight
