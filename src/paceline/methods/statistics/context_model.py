"""Online n-gram model of the target's distributions, with PPM back-off to shorter contexts.

Hit rates of candidates are learned by context length, evidence and share of the token. In C++:
`native/drafting/context_model.hpp`.
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Sequence
from copy import copy, deepcopy
from typing import Any, Self

import numpy as np

from paceline.core.types import Budget, LogitArray, ProbArray, TokenTree
from paceline.native.library import address, calls
from paceline.policy.acceptance import HitRates
from paceline.policy.constants import CONTEXT_TRUST, PROMPT_TRUST
from paceline.trees.candidates import CandidateTree, Offer, Workspace

# Tokens stored per context.
WIDTH = 8

# Tokens before a position, the nearest last.
Context = tuple[int, ...]

# Shares of tokens, the largest first.
Distribution = dict[int, float]

# Weight of a prompt token, relative to one distribution of the target.
PROMPT_WEIGHT = 0.1

# Bins of candidates by share.
SHARES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.95)


def _prior(order: int) -> ProbArray:
    # float64 `[order, 3, 9]`: as a token's share says, less so after short contexts and in prompts.
    edges = np.array([0.0, *SHARES, 1.0])
    shares = (edges[:-1] + edges[1:]) / 2
    trust = np.array(CONTEXT_TRUST)[np.minimum(np.arange(order), len(CONTEXT_TRUST) - 1)]
    rates: ProbArray = trust[:, None, None] * np.array([PROMPT_TRUST, 1.0, 1.0])[:, None] * shares
    return rates


class ContextModel:
    """Predicts the next token from contexts of 1 to `order` tokens; `rates` are its hit rates.

    A context takes 150 bytes. Whatever grows may raise MemoryError.
    """

    def __init__(self, order: int, capacity: int) -> None:
        """Start empty, with room for `capacity` contexts; the oldest is dropped.

        Raises:
            MemoryError: no room for it.
            RuntimeUnavailable: there are no native kernels.
        """
        self._order = order
        self.rates = HitRates(_prior(order), weight=30.0)
        self._call = calls("context_")
        self._hold(self._call.new(order, capacity))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        other = copy(self)
        other.rates = deepcopy(self.rates, memo)
        other._hold(self._call.copy(self._model))
        return other

    def tail(self, tokens: Sequence[int]) -> Context:
        """Return the longest context at the end of `tokens`."""
        return tuple(tokens[-self._order :])

    def follow(self, context: Context, token: int) -> Context:
        return (*context, token)[-self._order :]

    def read(self, tokens: Sequence[int], begin: int, weight: float) -> None:
        """Learn from text, from position `begin` on."""
        first = max(0, begin - self._order)
        text = array("i", tokens[first:])
        at = address(text)
        self._check(self._call.read(self._model, at, len(text), begin - first, weight))

    def recycle(self, tokens: Sequence[int], draft: TokenTree, logits: LogitArray) -> None:
        """Learn from the target's distributions at the root and nodes of a draft (top tokens only).

        `tokens` end at the root; `logits` are float32 `[1 + nodes, vocabulary]`, more rows ignored.
        """
        tail = tokens[-self._order :]
        numbers = array("i", [*tail, *draft.tokens.tolist(), *draft.parents.tolist()])
        if logits.dtype != np.float32 or not logits.flags.c_contiguous:
            logits = np.ascontiguousarray(logits, np.float32)
        self._check(
            self._call.recycle(
                self._model,
                address(numbers),
                len(tail),
                len(draft),
                address(logits),
                logits.shape[1],
            )
        )

    def look(self, context: Context) -> tuple[Distribution, float] | None:
        """Return the token shares of exactly this context, and their total weight."""
        text, tokens, shares = (
            array("i", context),
            array("i", [0] * WIDTH),
            array("d", [0.0] * (WIDTH + 1)),
        )
        count = self._call.look(
            self._model, address(text), len(text), address(tokens), address(shares)
        )
        if count < 0:
            return None
        return dict(zip(tokens[:count], shares[:count], strict=True)), shares[count]

    def offers(self, context: Context, reach: float) -> Sequence[Offer]:
        """Return the candidates after a context of path probability `reach`."""
        text, rates = array("i", context), self.rates.flat
        out = self._out
        out.fit(0, self._order * WIDTH)
        count = self._call.offers(
            self._model, address(text), len(text), reach, address(rates), out.numbers, out.chances
        )
        return out.offers(self._check(count), self.rates)

    def grow(self, tokens: Sequence[int], budget: Budget) -> CandidateTree:
        """Draft best-first after `tokens`, see `CandidateTree.grow`."""
        text, rates = array("i", tokens[-self._order :]), self.rates.flat
        nodes, out = budget.nodes, self._out
        out.fit(nodes, (1 + nodes) * self._order * WIDTH)
        count = self._call.grow(
            self._model,
            address(text),
            len(text),
            nodes,
            budget.depth,
            address(rates),
            out.numbers,
            out.chances,
        )
        return out.guess(self._check(count), self.rates)

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
