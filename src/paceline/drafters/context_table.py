"""What came next after a context, averaged over the times it was seen; of bounded size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as List

import numpy as np

from paceline.types import IntArray, ProbArray

WIDTH = 8
"""Tokens kept per context."""

NOTHING = -1
"""Stands for a token where a context has fewer than `WIDTH`."""

_PAST = 1.0
"""Most weight that the past has beside something new. At 1, what is seen once more is worth half
of the average: text changes, and the latest rows know best."""

_REPEATS = 16
"""Laws of one context that count in one go; what came before them has faded."""

Context = tuple[int, ...]
"""The tokens before some position, the nearest last."""


class ContextTable:
    """Averaged laws of the next token by context, cut to their likeliest tokens.

    A full table drops the context that was written longest ago. One context takes about 300 bytes.
    """

    def __init__(self, capacity: int) -> None:
        """An empty table for up to `capacity` contexts."""
        self._capacity = capacity
        self._slots: OrderedDict[Context, int] = OrderedDict()
        self._tokens = np.full((capacity, WIDTH), NOTHING, dtype=np.int32)
        self._shares = np.zeros((capacity, WIDTH), dtype=np.float32)
        self._weights = np.zeros(capacity)

    def __len__(self) -> int:
        """Number of contexts."""
        return len(self._slots)

    def look(self, context: Context) -> tuple[List[int], List[float], float] | None:
        """What is known of a context: tokens, likeliest first, their shares, and what they weigh.

        Places without a token hold `NOTHING` and a share of 0, and come last.
        """
        slot = self._slots.get(context)
        if slot is None:
            return None
        return self._tokens[slot].tolist(), self._shares[slot].tolist(), float(self._weights[slot])

    def add(
        self, contexts: List[Context], tokens: IntArray, shares: ProbArray, weight: float
    ) -> None:
        """Average laws into the table; of those for one context, the last 16.

        What was written longest ago is told by the last law of each context.

        Args:
            contexts: `n` contexts, the earliest first.
            tokens: int64 `[n, k]`, the likeliest tokens after each, all different.
            shares: float64 `[n, k]`, their probabilities.
            weight: how much each law counts beside what was seen before.
        """
        # The last laws of all contexts are averaged in at once, before them those that come
        # before, and so on.
        seen: dict[Context, int] = {}
        batches: list[list[int]] = []
        for row in range(len(contexts) - 1, -1, -1):
            batch = seen[contexts[row]] = seen.get(contexts[row], -1) + 1
            if batch == _REPEATS:
                seen[contexts[row]] -= 1
                continue
            if batch == len(batches):
                batches.append([])
            batches[batch].append(row)
        for rows in reversed(batches):
            for begin in range(len(rows), 0, -self._capacity):
                part = rows[max(0, begin - self._capacity) : begin][::-1]
                slots = np.array([self._slot(contexts[row]) for row in part])
                self._merge(slots, tokens[part], shares[part], weight)

    def _slot(self, context: Context) -> int:
        """Where a context is kept from now on, as the latest."""
        slot = self._slots.get(context)
        if slot is not None:
            self._slots.move_to_end(context)
            return slot
        slot = len(self._slots)
        if slot == self._capacity:
            _, slot = self._slots.popitem(last=False)
            self._tokens[slot], self._shares[slot], self._weights[slot] = NOTHING, 0.0, 0.0
        self._slots[context] = slot
        return slot

    def _merge(self, slots: IntArray, tokens: IntArray, shares: ProbArray, weight: float) -> None:
        """Average one law into each of several different slots."""
        old_tokens = self._tokens[slots]
        past = np.minimum(self._weights[slots], _PAST)[:, None]
        same = old_tokens[:, :, None] == tokens[:, None, :]
        kept = past * self._shares[slots] + weight * (same * shares[:, None, :]).sum(axis=2)
        added = np.where(same.any(axis=1), 0.0, weight * shares)
        mixed = np.concatenate([added, kept], axis=1) / (past + weight)
        order = np.argsort(-mixed, axis=1, kind="stable")[:, :WIDTH]
        best = np.take_along_axis(mixed, order, 1)
        named = np.take_along_axis(np.concatenate([tokens, old_tokens], axis=1), order, 1)
        self._tokens[slots] = np.where(best > 0, named, NOTHING)
        self._shares[slots] = best
        self._weights[slots] += weight
