"""The n-gram model of the target, and a reference of it in Python."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from copy import copy, deepcopy
from operator import itemgetter
from typing import Any, Self

from paceline.core.types import Budget, LogitArray, TokenTree
from paceline.drafters.recycling import top_rows
from paceline.methods.statistics.context_model import (
    SHARES,
    WIDTH,
    Context,
    ContextModel,
    Distribution,
    _prior,
)
from paceline.policy.acceptance import HitRates
from paceline.trees.candidates import FLOOR, CandidateTree, Offer

# Largest weight of the past: at 1, a new observation counts as much as all before it.
_PAST = 1.0

# Evidence bins: contexts from prompts alone, from one distribution, from several.
WEIGHTS = (0.9, 1.9)

# Assumed share of all tokens beyond the stored ones.
TAIL = 0.03

_share = itemgetter(1)


class ContextTable:
    """Next-token distributions by context, cut to top tokens; drops the oldest context."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._known: OrderedDict[Context, tuple[Distribution, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def look(self, context: Context) -> tuple[Distribution, float] | None:
        """Return the token shares of a context and their total weight."""
        return self._known.get(context)

    def add(self, context: Context, distribution: Distribution, weight: float) -> None:
        """Average top tokens into the entry of `context`; `weight` 1 is one observation."""
        known, total = self._known.pop(context, ({}, 0.0))
        if len(self._known) == self._capacity:
            self._known.popitem(last=False)
        past = min(total, _PAST)
        whole = past + weight
        mixed = [(t, weight * share / whole) for t, share in distribution.items() if t not in known]
        for token, share in known.items():
            mixed.append((token, (past * share + weight * distribution.get(token, 0.0)) / whole))
        mixed.sort(key=_share, reverse=True)  # of equal ones the new first
        best = {token: share for token, share in mixed[:WIDTH] if share > 0}
        self._known[context] = best, total + weight


class PlainContextModel(ContextModel):
    """The model of the C++, step by step in Python: it drafts alike to the last bit."""

    def __init__(self, order: int, capacity: int) -> None:
        self._order = order
        self.rates = HitRates(_prior(order), weight=30.0)
        self._table = ContextTable(capacity)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        other = copy(self)
        other.rates = deepcopy(self.rates, memo)
        other._table = deepcopy(self._table, memo)
        return other

    def read(self, tokens: Sequence[int], begin: int, weight: float) -> None:
        for end in range(max(begin, 1), len(tokens)):
            self._learn(tuple(tokens[max(0, end - self._order) : end]), {tokens[end]: 1.0}, weight)

    def recycle(self, tokens: Sequence[int], draft: TokenTree, logits: LogitArray) -> None:
        contexts = [self.tail(tokens)]
        for token, parent in zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True):
            contexts.append(self.follow(contexts[parent + 1], token))
        ids, values = top_rows(logits[: len(contexts)], WIDTH)
        for context, best, row in zip(contexts, ids.tolist(), values.tolist(), strict=True):
            likely = [math.exp(value - row[0]) for value in row]
            total = _sum(likely)
            self._learn(context, {t: x / total for t, x in zip(best, likely, strict=True)}, 1.0)

    def look(self, context: Context) -> tuple[Distribution, float] | None:
        return self._table.look(context)

    def offers(self, context: Context, reach: float) -> Sequence[Offer]:
        offers: list[Offer] = []
        offered: set[int] = set()
        left = 1.0
        for length in range(len(context), 0, -1):
            known = self._table.look(context[-length:])
            if known is None:
                continue
            distribution, weight = known
            kind = bisect_right(WEIGHTS, weight)
            rates = self.rates.table[length - 1][kind]
            fresh = {token: share for token, share in distribution.items() if token not in offered}
            rest = _sum(fresh.values())
            for token, share in fresh.items():
                if left * reach < FLOOR:
                    break
                part = bisect_right(SHARES, share / (max(rest, share) + TAIL))
                offers.append((token, left * rates[part], (length - 1, kind, part)))
                left *= 1 - rates[part]
                rest -= share
            offered.update(fresh)
        return offers

    def grow(self, tokens: Sequence[int], budget: Budget) -> CandidateTree:
        return CandidateTree.grow(self.tail(tokens), budget, self.offers, self.follow)

    def _learn(self, context: Context, distribution: Distribution, weight: float) -> None:
        for length in range(1, len(context) + 1):
            self._table.add(context[-length:], distribution, weight)


def _sum(numbers: Iterable[float]) -> float:
    # One after another, as in C++; Python's own sum is more exact in some versions.
    total = 0.0
    for number in numbers:
        total += number
    return total


KINDS: list[type[ContextModel]] = [PlainContextModel, ContextModel]
