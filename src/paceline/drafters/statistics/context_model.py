"""Online n-gram model of the target's distributions, with PPM back-off to shorter contexts.

Hit rates of candidates are learned by context length, evidence and share of the token. Native
kernels and the Python reference implementation draft alike.
"""

from __future__ import annotations

import math
import weakref
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as List
from copy import copy, deepcopy
from operator import itemgetter
from typing import Any, Self

import numpy as np

from paceline.core.types import Budget, LogitArray, ProbArray, TokenTree
from paceline.drafters.statistics.recycling import top_rows
from paceline.native.library import address, calls, library
from paceline.policy.acceptance import HitRates
from paceline.policy.constants import CONTEXT_TRUST, PROMPT_TRUST
from paceline.trees.candidates import FLOOR, CandidateTree, Offer, Workspace

# Bounded LRU table:

# Tokens stored per context.
WIDTH = 8

# Largest weight of the past: at 1, a new observation counts as much as all before it.
_PAST = 1.0

# Tokens before a position, the nearest last.
Context = tuple[int, ...]

# Shares of tokens, the largest first.
Distribution = dict[int, float]

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


# Weight of a prompt token, relative to one distribution of the target.
PROMPT_WEIGHT = 0.1

# Evidence bins: contexts from prompts alone, from one distribution, from several.
WEIGHTS = (0.9, 1.9)

# Bins of candidates by share.
SHARES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.95)

# Assumed share of all tokens beyond the stored ones.
TAIL = 0.03


def _prior(order: int) -> ProbArray:
    # float64 `[order, 3, 9]`: as a token's share says, less so after short contexts and in prompts.
    edges = np.array([0.0, *SHARES, 1.0])
    shares = (edges[:-1] + edges[1:]) / 2
    trust = np.array(CONTEXT_TRUST)[np.minimum(np.arange(order), len(CONTEXT_TRUST) - 1)]
    rates: ProbArray = trust[:, None, None] * np.array([PROMPT_TRUST, 1.0, 1.0])[:, None] * shares
    return rates


class ContextModel:
    """Predicts the next token from contexts of 1 to `order` tokens; `rates` are its hit rates."""

    def __new__(cls, *_: object) -> Self:
        return super().__new__(_kind() if cls is ContextModel else cls)

    def __init__(self, order: int, capacity: int) -> None:
        """Create an empty model of up to `capacity` contexts."""
        self._order = order
        self.rates = HitRates(_prior(order), weight=30.0)

    def tail(self, tokens: List[int]) -> Context:
        """Return the longest context at the end of `tokens`."""
        return tuple(tokens[-self._order :])

    def follow(self, context: Context, token: int) -> Context:
        return (*context, token)[-self._order :]

    def read(self, tokens: List[int], begin: int, weight: float) -> None:
        """Learn from text, from position `begin` on."""
        raise NotImplementedError

    def recycle(self, tokens: List[int], draft: TokenTree, logits: LogitArray) -> None:
        """Learn from the target's distributions at the root and nodes of a draft (top tokens only).

        `tokens` end at the root; `logits` are float32 `[1 + nodes, vocabulary]`, more rows ignored.
        """
        raise NotImplementedError

    def look(self, context: Context) -> tuple[Distribution, float] | None:
        """Return the entry of exactly this context, see `ContextTable`."""
        raise NotImplementedError

    def offers(self, context: Context, reach: float) -> List[Offer]:
        """Return the candidates after a context of path probability `reach`."""
        raise NotImplementedError

    def grow(self, tokens: List[int], budget: Budget) -> CandidateTree:
        """Draft best-first after `tokens`, see `CandidateTree.grow`."""
        raise NotImplementedError


def _kind() -> type:
    return PlainContextModel if library() is None else NativeContextModel


# N-gram model of the target in C++ (`native/drafting/context_model.hpp`).


class NativeContextModel(ContextModel):
    """N-gram model in the library's memory, 150 bytes per context. MemoryError: no room for it."""

    def __init__(self, order: int, capacity: int) -> None:
        super().__init__(order, capacity)
        self._call = calls("context_")
        self._hold(self._call.new(order, capacity))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        other = copy(self)
        other.rates = deepcopy(self.rates, memo)
        other._hold(self._call.copy(self._model))
        return other

    def read(self, tokens: List[int], begin: int, weight: float) -> None:
        first = max(0, begin - self._order)
        text = array("i", tokens[first:])
        at = text.buffer_info()[0]
        self._check(self._call.read(self._model, at, len(text), begin - first, weight))

    def recycle(self, tokens: List[int], draft: TokenTree, logits: LogitArray) -> None:
        tail = tokens[-self._order :]
        numbers = array("i", [*tail, *draft.tokens.tolist(), *draft.parents.tolist()])
        if logits.dtype != np.float32 or not logits.flags.c_contiguous:
            logits = np.ascontiguousarray(logits, np.float32)
        self._check(
            self._call.recycle(
                *(self._model, numbers.buffer_info()[0], len(tail), len(draft)),
                *(address(logits), logits.shape[1]),
            )
        )

    def look(self, context: Context) -> tuple[Distribution, float] | None:
        text, tokens, shares = (
            array("i", context),
            array("i", [0] * WIDTH),
            array("d", [0.0] * (WIDTH + 1)),
        )
        count = self._call.look(
            *(self._model, text.buffer_info()[0], len(text)),
            *(tokens.buffer_info()[0], shares.buffer_info()[0]),
        )
        if count < 0:
            return None
        return dict(zip(tokens[:count], shares[:count], strict=True)), shares[count]

    def offers(self, context: Context, reach: float) -> List[Offer]:
        text, rates = array("i", context), self.rates.flat
        out = self._out
        out.fit(0, self._order * WIDTH)
        count = self._call.offers(
            *(self._model, text.buffer_info()[0], len(text), reach, rates.buffer_info()[0]),
            *(out.numbers, out.chances),
        )
        return out.offers(self._check(count), self.rates)

    def grow(self, tokens: List[int], budget: Budget) -> CandidateTree:
        text, rates = array("i", tokens[-self._order :]), self.rates.flat
        nodes, out = budget.nodes, self._out
        out.fit(nodes, (1 + nodes) * self._order * WIDTH)
        count = self._call.grow(
            *(self._model, text.buffer_info()[0], len(text), nodes, budget.depth),
            *(rates.buffer_info()[0], out.numbers, out.chances),
        )
        return out.guess(self._check(count))

    def _hold(self, model: int | None) -> None:
        if not model:
            raise MemoryError("no memory for an n-gram model")
        self._model = model
        self._out = Workspace()
        weakref.finalize(self, self._call.free, model).atexit = False

    def _check(self, done: int) -> int:
        if done < 0:
            raise MemoryError("no memory for more contexts in an n-gram model")
        return done


# N-gram model of the target in Python:


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

    def look(self, context: Context) -> tuple[Distribution, float] | None:
        return self._table.look(context)

    def offers(self, context: Context, reach: float) -> List[Offer]:
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

    def grow(self, tokens: List[int], budget: Budget) -> CandidateTree:
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
