"""Growing a draft by Monte-Carlo tree search, as ADED does (Liu et al. 2024, arXiv:2407.12021)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from collections.abc import Sequence as List
from typing import Generic

from paceline.drafters.best_first import Guess, Offer, Place
from paceline.types import ROOT, Budget

_BASE, _SCALE = 32.0, 8.0
"""The published constants of exploration, c1 and c2."""


class _Branch(Generic[Place]):
    """A node of the search: how likely it is, and what trying it has brought."""

    place: Place

    def __init__(self, token: int, chance: float, reach: float) -> None:
        self.token = token
        self.chance = chance
        self.reach = reach
        self.visits = 0
        self.gain = 0.0
        self.offers: List[Offer] | None = None
        self.below: list[_Branch[Place]] = []

    def next(self) -> _Branch[Place]:
        """The child to try: the highest mean gain, plus a bonus for the likely but little tried."""
        explore = (_BASE + math.log((self.visits + _SCALE + 1) / _SCALE)) * math.sqrt(self.visits)

        def value(child: _Branch[Place]) -> tuple[float, float]:
            mean = child.gain / child.visits if child.visits else 0.0
            return mean + explore * child.chance / (1 + child.visits), child.chance

        return max(self.below, key=value)


class Searched(Guess):
    """A guess whose nodes are those that a search visited most.

    Attributes:
        visits: per node, how often the search passed through it.
    """

    def __init__(self) -> None:
        """A guess that proposes nothing."""
        super().__init__()
        self.visits: list[int] = []

    @classmethod
    def search(
        cls,
        place: Place,
        budget: Budget,
        offers: Callable[[Place, float], List[Offer]],
        follow: Callable[[Place, int], Place],
        iterations: int,
    ) -> Searched:
        """Try paths, and keep the nodes visited most.

        An iteration descends from the root to the greatest depth by the rule of PUCT and credits
        every node on its way with the expected number of tokens that its path would commit. (The
        paper ends a path with tokens that it draws; descending by the rule all the way makes the
        draft a function of the context.)

        Args:
            place: as for `Guess.grow`.
            budget: as for `Guess.grow`.
            offers: as for `Guess.grow`.
            follow: as for `Guess.grow`.
            iterations: paths to try.
        """
        root: _Branch[Place] = _Branch(ROOT, 1.0, 1.0)
        root.place = place
        depth = budget.depth if budget.nodes > 0 else 0
        for _ in range(iterations if depth > 0 else 0):
            path = [root]
            while len(path) <= depth:
                end = path[-1]
                if end.offers is None:
                    if end is not root:
                        end.place = follow(path[-2].place, end.token)
                    end.offers = offers(end.place, end.reach)
                    end.below = [
                        _Branch(t, chance, end.reach * chance) for t, chance, _ in end.offers
                    ]
                if not end.below:
                    break
                path.append(end.next())
            gain = sum(branch.reach for branch in path)
            for branch in path:
                branch.visits += 1
                branch.gain += gain
        return cls._most_visited(root, budget.nodes)

    @classmethod
    def _most_visited(cls, root: _Branch[Place], nodes: int) -> Searched:
        """Nodes by visits; nobody is visited more than its parent, so these are a tree."""
        guess = cls()
        heap: list[tuple[int, float, int, int, _Branch[Place]]] = []
        serial = 0

        def enter(node: int, branch: _Branch[Place]) -> None:
            nonlocal serial
            guess._offers[node] = branch.offers or ()
            for child in branch.below:
                serial += 1
                if child.visits:
                    heapq.heappush(heap, (-child.visits, -child.reach, serial, node, child))

        enter(ROOT, root)
        while heap and len(guess.tokens) < nodes:
            _, _, _, parent, branch = heapq.heappop(heap)
            node = len(guess.tokens)
            guess.tokens.append(branch.token)
            guess.parents.append(parent)
            guess.scores.append(branch.reach)
            guess.visits.append(branch.visits)
            guess._children[parent, branch.token] = node
            enter(node, branch)
        return guess
