"""DySpec with a threshold (Xiong et al. 2024, arXiv:2410.11744): batched dynamic expansion."""

from __future__ import annotations

from typing import ClassVar

from paceline.errors import InvalidOption
from paceline.growth.base import Growing, Growth, Sapling
from paceline.law import without
from paceline.randomness import Randomness
from paceline.types import ROOT, Budget, LawKind


class Threshold(Growth):
    """Draws wherever the reach probability is at least `least`, with one forward per level."""

    name: ClassVar[str] = "threshold"
    kind: ClassVar[LawKind | None] = "without_replacement"

    def __init__(self, least: float) -> None:
        """Set the threshold. Raises InvalidOption if it is not in (0, 1]."""
        if not 0 < least <= 1:
            raise InvalidOption(f"growth 'threshold' needs a threshold in (0, 1], not {least}")
        self._least = least

    def grow(self, budget: Budget, randomness: Randomness, position: int) -> Growing:
        sapling = Sapling(budget, position)
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
