"""Best-first tree expansion from estimated token probabilities, with learned hit rates."""

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

# Least path probability for which a node is worth a row of the forward.
FLOOR = 0.01

# Candidate: token, estimated probability, and hit rate cell that the estimate comes from.
Offer = tuple[int, float, tuple[int, ...]]

# State of a path in the drafter's model of the text.
Place = TypeVar("Place")


class Guess:
    """A draft with the hit rate cells of its candidates.

    Nodes are in score order, so any prefix is a tree.

    Attributes:
        tokens, parents, scores: per node, as in `TokenTree`.
    """

    def __init__(self) -> None:
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
        """Expand the most probable nodes first.

        Args:
            place: of the root.
            offers: (place, probability of reaching it) to candidates; tokens differ and the
                probabilities sum to at most one.
            follow: (place, token) to the place after the token.
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
        """Build a chain; each probability is conditional on the tokens before."""
        return _Chain(steps)

    def _add(self, parent: int, token: int, score: float) -> int:
        node = self._children[parent, token] = len(self.tokens)
        self.tokens.append(token)
        self.parents.append(parent)
        self.scores.append(score)
        return node

    @property
    def score(self) -> float:
        """Expected accepted tokens."""
        return sum(self.scores)

    def tree(self, source: str, origins: tuple[str, ...] = ()) -> TokenTree:
        tokens, parents = np.array(self.tokens, np.int64), np.array(self.parents, np.int64)
        scores = np.array(self.scores, dtype=np.float64)
        return TokenTree(tokens, parents, None, source, scores, origins)

    def learn(self, committed: List[int], rates: HitRates) -> None:
        """Count candidates along the committed tokens: misses, up to the hit at each node."""
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
    def __init__(self, steps: List[Offer]) -> None:
        tokens, chances, _ = zip(*steps, strict=True) if steps else ((), (), ())
        self.tokens = list(tokens)
        self.parents = list(range(ROOT, len(steps) - 1))
        self.scores = list(accumulate(chances, mul))
        self._steps = steps

    def learn(self, committed: List[int], rates: HitRates) -> None:
        for token, (offered, _, cell) in zip(committed, self._steps, strict=False):
            rates.add(cell, offered == token)
            if offered != token:
                return
