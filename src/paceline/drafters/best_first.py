"""Growing a draft from the likeliest path on, and learning from what became of it."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from collections.abc import Sequence as List
from itertools import accumulate
from operator import mul
from typing import TypeVar

import numpy as np

from paceline.drafters.statistics import HitRates
from paceline.types import ROOT, Budget, TokenTree

FLOOR = 0.01
"""A node less likely than this is not worth its place in any forward."""

Offer = tuple[int, float, tuple[int, ...]]
"""A possible next token: the token, the estimated probability that it comes next, and the cell of
the hit rate that the estimate rests on."""

Place = TypeVar("Place")
"""Where a path stands in the texts that are drafted from."""


class Guess:
    """A draft with the reasons for it.

    Nodes stand in the order of their scores, so any head of the draft is a tree.

    Attributes:
        tokens, parents, scores: per node, as in a `TokenTree`.
    """

    def __init__(self) -> None:
        """A guess that proposes nothing."""
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.scores: list[float] = []
        self._offers: dict[int, List[Offer]] = {}
        self._children: dict[tuple[int, int], int] = {}

    @classmethod
    def grow(
        cls,
        place: Place,
        budget: Budget,
        offers: Callable[[Place, float], List[Offer]],
        follow: Callable[[Place, int], Place],
    ) -> Guess:
        """The likeliest nodes of all that may follow a place.

        Args:
            place: where the root stands.
            budget: most nodes and greatest depth.
            offers: from a place, and the probability that decoding gets there, to what may come
                next; tokens differ, and their chances sum to at most one.
            follow: from a place and an offered token to the place behind it.
        """
        guess = cls()
        heap: list[tuple[float, int, int, int, Place, int]] = []
        serial = 0

        def expand(node: int, place: Place, reach: float, depth: int) -> None:
            nonlocal serial
            found = guess._offers[node] = offers(place, reach)
            for token, chance, _ in found:
                serial += 1  # equal scores: the elder first
                heapq.heappush(heap, (-reach * chance, serial, node, token, place, depth))

        if budget.nodes > 0 and budget.depth > 0:
            expand(ROOT, place, 1.0, 1)
        while heap and len(guess.tokens) < budget.nodes:
            value, _, parent, token, above, depth = heapq.heappop(heap)
            node = guess._add(parent, token, -value)
            if depth < budget.depth and node + 1 < budget.nodes:
                expand(node, follow(above, token), -value, depth + 1)
        return guess

    @classmethod
    def chain(cls, steps: List[Offer]) -> Guess:
        """A chain of tokens, each with its chance given that those before it come."""
        return _Chain(steps)

    def _add(self, parent: int, token: int, score: float) -> int:
        node = self._children[parent, token] = len(self.tokens)
        self.tokens.append(token)
        self.parents.append(parent)
        self.scores.append(score)
        return node

    @property
    def score(self) -> float:
        """Expected number of accepted tokens."""
        return sum(self.scores)

    def tree(self, source: str, origins: tuple[str, ...] = ()) -> TokenTree:
        """The draft; see there for `source` and `origins`."""
        tokens, parents = np.array(self.tokens, np.int64), np.array(self.parents, np.int64)
        scores = np.array(self.scores, dtype=np.float64)
        return TokenTree(tokens, parents, None, source, scores, origins)

    def learn(self, committed: List[int], rates: HitRates) -> None:
        """Count the offers along the committed tokens as hits and misses.

        The rate of an offer is that of the cases in which none before it came true.
        """
        node: int | None = ROOT
        for token in committed:
            if node is None:
                return
            for offered, _, cell in self._offers.get(node, ()):
                rates.add(cell, offered == token)
                if offered == token:
                    break
            node = self._children.get((node, token))


class _Chain(Guess):
    """One offer behind the other: nothing to look up."""

    def __init__(self, steps: List[Offer]) -> None:
        tokens, chances, _ = zip(*steps, strict=True) if steps else ((), (), ())
        self.tokens = list(tokens)
        self.parents = list(range(ROOT, len(steps) - 1))
        self.scores = list(accumulate(chances, mul))
        self._steps = steps

    def learn(self, committed: List[int], rates: HitRates) -> None:
        """As in any guess: up to the first miss."""
        for token, (offered, _, cell) in zip(committed, self._steps, strict=False):
            rates.add(cell, offered == token)
            if offered != token:
                return
