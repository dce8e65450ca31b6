"""Bounded LRU table: context to averaged distribution of the next token."""

from __future__ import annotations

from collections import OrderedDict
from operator import itemgetter

# Tokens stored per context.
WIDTH = 8

# Largest weight of the past: at 1, a new observation counts as much as all before it.
_PAST = 1.0

# Tokens before a position, the nearest last.
Context = tuple[int, ...]

# Shares of tokens, the largest first.
Law = dict[int, float]

_share = itemgetter(1)


class ContextTable:
    """Next-token distributions by context, cut to top tokens; drops the oldest context."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._known: OrderedDict[Context, tuple[Law, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def look(self, context: Context) -> tuple[Law, float] | None:
        """Return the token shares of a context and their total weight."""
        return self._known.get(context)

    def add(self, context: Context, law: Law, weight: float) -> None:
        """Average top tokens into the entry of `context`; `weight` 1 is one observation."""
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
