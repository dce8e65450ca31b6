"""Greedy dynamic expansion: DySpec (Xiong et al. 2024, arXiv:2410.11744).

A heap holds every place where one more token could be drawn, valued by the estimated probability
that verification gets there; the estimate of a token's acceptance is its draft probability. The
value of a place is known before its token is drawn, so expanding the best place is predictable.
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
    """Spends every node of the budget where it is likeliest to be reached.

    Whether a node gets one more child depends on its elder children, never on that child; so the
    children of a node, in node order, are draws without replacement.
    """

    name: ClassVar[str] = "dynamic"
    kind: ClassVar[LawKind | None] = "without_replacement"

    def grow(self, budget: Budget, randomness: Randomness, position: int) -> Growing:
        """Draw at the best place until nodes or places run out.

        Laws are asked for when a place without one comes first, and then for all such places at
        once: a forward over the tree tells them all.
        """
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
