"""DySpec (Xiong et al. 2024, arXiv:2410.11744): greedy dynamic tree expansion.

A heap orders places by estimated reach probability, which is known before the token is drawn;
so the expansion is predictable.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import ClassVar

from paceline.core.types import ROOT, Budget, SamplingScheme
from paceline.errors import InvalidOption
from paceline.sampling.randomness import Randomness
from paceline.trees.base import BestFirst, Growing, TreeBuilder, TreeExpansion, successive


class Dynamic(TreeExpansion):
    """Spends each node of the budget where verification most probably arrives.

    A further child depends on elder siblings only: children are samples without replacement.
    """

    name: ClassVar[str] = "dynamic"
    guarantee = "siblings without replacement"
    paper = "DySpec, Xiong et al. 2024, arXiv:2410.11744"
    kind: ClassVar[SamplingScheme | None] = "without_replacement"

    def grow(self, budget: Budget, randomness: Randomness, position: int) -> Growing:
        # One forward over the tree gives the distributions of all waiting places at once.
        builder = TreeBuilder(budget, position)
        queue: BestFirst[tuple[int, Iterator[tuple[int, float]] | None]] = BestFirst()
        if budget.depth > 0:
            queue.push(1.0, (ROOT, None))
        while queue and builder.room:
            value, (parent, draws) = queue.pop()
            if draws is None:
                if parent not in builder.rows:
                    waiting = {place for place, begun in queue if begun is None}
                    yield from builder.ask([parent, *sorted(waiting - builder.rows.keys())])
                draws = successive(builder.rows[parent], builder.names(parent), randomness)
            for token, chance in islice(draws, 1):  # none if nothing is left
                child = builder.add(parent, token)
                if builder.depth(child) < budget.depth:
                    queue.push(value * chance, (child, None))
                queue.push(value * (1 - chance), (parent, draws))
        return builder.finish(self.kind)


class Threshold(TreeExpansion):
    """Draws wherever the reach probability is at least `least`, with one forward per level."""

    name: ClassVar[str] = "threshold"
    guarantee = "siblings without replacement"
    paper = "DySpec, Xiong et al. 2024, arXiv:2410.11744"
    kind: ClassVar[SamplingScheme | None] = "without_replacement"

    def __init__(self, least: float) -> None:
        """Set the threshold. Raises InvalidOption if it is not in (0, 1]."""
        if not 0 < least <= 1:
            raise InvalidOption(f"growth 'threshold' needs a threshold in (0, 1], not {least}")
        self._least = least

    def grow(self, budget: Budget, randomness: Randomness, position: int) -> Growing:
        builder = TreeBuilder(budget, position)
        level = {ROOT: 1.0}
        for _ in range(budget.depth):
            parents = [node for node, value in level.items() if value >= self._least]
            parents = parents[: builder.room]
            if not parents:
                break
            rows = yield from builder.ask(parents)
            below: dict[int, float] = {}
            for parent, q in zip(parents, rows, strict=True):
                value, draws = level[parent], successive(q, builder.names(parent), randomness)
                while value >= self._least and builder.room and (drawn := next(draws, None)):
                    token, chance = drawn
                    below[builder.add(parent, token)] = value * chance
                    value *= 1 - chance
            level = below
        return builder.finish(self.kind)
