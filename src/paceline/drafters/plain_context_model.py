"""N-gram model of the target in Python: the reference implementation."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from collections.abc import Sequence as List

from paceline.drafters.best_first import FLOOR, Guess, Offer
from paceline.drafters.context_model import SHARES, TAIL, WEIGHTS, ContextModel
from paceline.drafters.context_table import WIDTH, Context, ContextTable, Law
from paceline.drafters.top_rows import top_rows
from paceline.types import Budget, LogitArray, TokenTree


class PlainContextModel(ContextModel):
    """N-gram model in dictionaries; a context takes about 1 KB."""

    def __init__(self, order: int, capacity: int) -> None:
        super().__init__(order, capacity)
        self._table = ContextTable(capacity)

    def read(self, tokens: List[int], begin: int, weight: float) -> None:
        for end in range(max(begin, 1), len(tokens)):
            self._learn(tuple(tokens[max(0, end - self._order) : end]), {tokens[end]: 1.0}, weight)

    def recycle(self, tokens: List[int], draft: TokenTree, logits: LogitArray) -> None:
        contexts = [self.tail(tokens)]
        for token, parent in zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True):
            contexts.append(self.follow(contexts[parent + 1], token))
        ids, values = top_rows(logits[: len(contexts)], WIDTH)
        for context, best, row in zip(contexts, ids.tolist(), values.tolist(), strict=True):
            likely = [math.exp(value - row[0]) for value in row]
            total = _sum(likely)
            self._learn(context, {t: x / total for t, x in zip(best, likely, strict=True)}, 1.0)

    def look(self, context: Context) -> tuple[Law, float] | None:
        return self._table.look(context)

    def offers(self, context: Context, reach: float) -> List[Offer]:
        offers: list[Offer] = []
        offered: set[int] = set()
        left = 1.0
        for length in range(len(context), 0, -1):
            known = self._table.look(context[-length:])
            if known is None:
                continue
            law, weight = known
            kind = bisect_right(WEIGHTS, weight)
            rates = self.rates.table[length - 1][kind]
            fresh = {token: share for token, share in law.items() if token not in offered}
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

    def grow(self, tokens: List[int], budget: Budget) -> Guess:
        return Guess.grow(self.tail(tokens), budget, self.offers, self.follow)

    def _learn(self, context: Context, law: Law, weight: float) -> None:
        for length in range(1, len(context) + 1):
            self._table.add(context[-length:], law, weight)


def _sum(numbers: Iterable[float]) -> float:
    # One after another, as in C++; Python's own sum is more exact in some versions.
    total = 0.0
    for number in numbers:
        total += number
    return total
