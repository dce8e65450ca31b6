"""DySpec (Xiong et al. 2024, arXiv:2410.11744): greedy dynamic tree expansion.

A heap orders places by estimated reach probability, which is known before the token is drawn;
so the expansion is predictable.
"""

from __future__ import annotations

import heapq
import itertools
from typing import ClassVar

from paceline.core.types import ROOT, Budget, Distribution, SamplingScheme
from paceline.errors import InvalidOption
from paceline.sampling.distributions import without
from paceline.sampling.randomness import Randomness
from paceline.trees.base import Growing, TreeBuilder, TreeExpansion


class Dynamic(TreeExpansion):
    """Spends each node of the budget where verification most probably arrives.

    A further child depends on elder siblings only: children are samples without replacement.
    """

    name: ClassVar[str] = "dynamic"
    kind: ClassVar[SamplingScheme | None] = "without_replacement"

    def grow(self, budget: Budget, randomness: Randomness, position: int) -> Growing:
        # One forward over the tree gives the distributions of all waiting places at once.
        sapling = TreeBuilder(budget, position)
        order = itertools.count()  # places of equal value: the elder first
        heap: list[tuple[float, int, int, Distribution | None]] = []
        if budget.depth > 0:
            heap.append((-1.0, next(order), ROOT, None))
        while heap and sapling.room:
            value, _, parent, rest = heapq.heappop(heap)
            if rest is None:
                if parent not in sapling.rows:
                    waiting = {place[2] for place in heap if place[3] is None}
                    yield from sapling.ask([parent, *sorted(waiting - sapling.rows.keys())])
                rest = sapling.rows[parent]
            token = rest.token(randomness.choice(rest.probs, sapling.names(parent)()))
            child = sapling.add(parent, token)
            chance = rest.prob(token)
            if sapling.depth(child) < budget.depth:
                heapq.heappush(heap, (value * chance, next(order), child, None))
            left = without(rest, token)
            if left is not None:
                heapq.heappush(heap, (value * (1 - chance), next(order), parent, left))
        return sapling.finish(self.kind)


# DySpec with a threshold (Xiong et al.


class Threshold(TreeExpansion):
    """Draws wherever the reach probability is at least `least`, with one forward per level."""

    name: ClassVar[str] = "threshold"
    kind: ClassVar[SamplingScheme | None] = "without_replacement"

    def __init__(self, least: float) -> None:
        """Set the threshold. Raises InvalidOption if it is not in (0, 1]."""
        if not 0 < least <= 1:
            raise InvalidOption(f"growth 'threshold' needs a threshold in (0, 1], not {least}")
        self._least = least

    def grow(self, budget: Budget, randomness: Randomness, position: int) -> Growing:
        sapling = TreeBuilder(budget, position)
        level = {ROOT: 1.0}
        for _ in range(budget.depth):
            parents = [node for node, value in level.items() if value >= self._least]
            parents = parents[: sapling.room]
            if not parents:
                break
            rows = yield from sapling.ask(parents)
            below: dict[int, float] = {}
            for parent, q in zip(parents, rows, strict=True):
                value, rest = level[parent], q if sapling.room else None
                while rest is not None and value >= self._least and sapling.room:
                    token = rest.token(randomness.choice(rest.probs, sapling.names(parent)()))
                    chance = rest.prob(token)
                    below[sapling.add(parent, token)] = value * chance
                    value *= 1 - chance
                    rest = without(rest, token)
            level = below
        return sapling.finish(self.kind)
