"""DySpec (Xiong et al. 2024, arXiv:2410.11744): greedy dynamic tree expansion.

A heap orders places by estimated reach probability, which is known before the token is drawn;
so the expansion is predictable.
"""

from __future__ import annotations

import heapq
import itertools
from typing import ClassVar

from paceline.growth.base import Growing, Growth, Sapling
from paceline.law import without
from paceline.randomness import Randomness
from paceline.types import ROOT, Budget, Law, LawKind


class Dynamic(Growth):
    """Spends each node of the budget where verification most probably arrives.

    A further child depends on elder siblings only: children are samples without replacement.
    """

    name: ClassVar[str] = "dynamic"
    kind: ClassVar[LawKind | None] = "without_replacement"

    def grow(self, budget: Budget, randomness: Randomness, position: int) -> Growing:
        # One forward over the tree gives the distributions of all waiting places at once.
        sapling = Sapling(budget, position)
        order = itertools.count()  # places of equal value: the elder first
        heap: list[tuple[float, int, int, Law | None]] = []
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
