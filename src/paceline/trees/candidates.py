"""Best-first trees of candidates: tokens with estimated probabilities and their hit rate cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np

from paceline.core.tree import Builder
from paceline.core.types import ROOT, Budget
from paceline.native.library import address
from paceline.policy.acceptance import HitRates
from paceline.trees.base import BestFirst

# Least path probability for which a node is worth a row of the forward.
FLOOR = 0.01

# Candidate: token, estimated probability, and hit rate cell that the estimate comes from.
Offer = tuple[int, float, tuple[int, ...]]

# State of a path in the drafter's model of the text.
Place = TypeVar("Place")


class CandidateTree(Builder):
    """A draft with the hit rate cells of its candidates; nodes in score order, so that any prefix
    is a tree.
    """

    scored = True

    def __init__(self) -> None:
        super().__init__()
        self._offers: dict[int, Sequence[Offer]] = {}

    @classmethod
    def grow(
        cls,
        place: Place,
        budget: Budget,
        offers: Callable[[Place, float], Sequence[Offer]],
        follow: Callable[[Place, int], Place],
    ) -> CandidateTree:
        """Expand the most probable nodes first.

        Args:
            place: of the root.
            offers: (place, probability of reaching it) to candidates; tokens differ and the
                probabilities sum to at most one.
            follow: (place, token) to the place after the token.
        """
        guess = cls()
        queue: BestFirst[tuple[int, int, Place, int]] = BestFirst()

        def enter(node: int, place: Place, reach: float, depth: int) -> None:
            found = guess._offers[node] = offers(place, reach)
            for token, probability, _ in found:
                queue.push(reach * probability, (node, token, place, depth))

        if budget.nodes > 0 and budget.depth > 0:
            enter(ROOT, place, 1.0, 1)
        while queue and len(guess.tokens) < budget.nodes:
            reach, (parent, token, above, depth) = queue.pop()
            node = guess.add(parent, token, reach)
            if depth < budget.depth and node + 1 < budget.nodes:
                enter(node, follow(above, token), reach, depth + 1)
        return guess

    @classmethod
    def chain(cls, steps: Sequence[Offer]) -> CandidateTree:
        """Build a chain; each probability is conditional on the tokens before."""
        guess, node, reach = cls(), ROOT, 1.0
        for offer in steps:
            guess._offers[node] = [offer]
            reach *= offer[1]
            node = guess.add(node, offer[0], reach)
        return guess

    @property
    def score(self) -> float:
        """Expected accepted tokens."""
        return sum(self.scores)

    def learn(self, committed: Sequence[int], rates: HitRates) -> None:
        """Count candidates along the committed tokens: misses, up to the hit at each node."""
        node: int | None = ROOT
        for token in committed:
            if node is None:
                return
            for offered, _, cell in self._offers.get(node, ()):
                rates.add(cell, offered == token)
                if offered == token:
                    break
            node = self.nodes.get((node, token))


class Workspace:
    """Output buffers of native tree expansion: addresses of int64 `numbers`, float64 `chances`."""

    def __init__(self) -> None:
        self._nodes = self._offers = -1

    def fit(self, nodes: int, offers: int) -> None:
        """Make room for a draft of so many nodes with so many offers in all, or for the offers."""
        if nodes > self._nodes or offers > self._offers:
            self._nodes, self._offers = max(nodes, self._nodes), max(offers, self._offers)
            self._numbers = np.empty(3 * self._nodes + 2 + 2 * self._offers, np.int64)
            self._chances = np.empty(max(self._nodes, self._offers))
            self.numbers, self.chances = address(self._numbers), address(self._chances)

    def guess(self, nodes: int, rates: HitRates) -> CandidateTree:
        """Return the draft of so many nodes that was written, with cells of `rates`."""
        # The layout is that of `Growth::write`.
        offers = int(self._numbers[3 * nodes + 1])
        numbers = self._numbers[: 3 * nodes + 2 + 2 * offers].tolist()
        guess = CandidateTree()
        for node, score in enumerate(self._chances[:nodes].tolist()):
            guess.add(numbers[nodes + node], numbers[node], score)
        begins, pairs = numbers[2 * nodes : 3 * nodes + 2], numbers[3 * nodes + 2 :]
        for node, (begin, end) in enumerate(pairwise(begins), ROOT):
            guess._offers[node] = [
                (pairs[2 * at], 0.0, rates.cells[pairs[2 * at + 1]]) for at in range(begin, end)
            ]
        return guess

    def offers(self, count: int, rates: HitRates) -> list[Offer]:
        """Return the offers that were written, whose cells are those of `rates`."""
        each = iter(self._numbers[: 2 * count].tolist())
        chances = self._chances[:count].tolist()
        return [(t, p, rates.cells[cell]) for t, cell, p in zip(each, each, chances, strict=True)]
