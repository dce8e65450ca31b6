"""Base of tree expansions with a branching factor per level."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from paceline.errors import InvalidOption
from paceline.growth.base import Growing, Growth, Names, Sapling
from paceline.randomness import Randomness
from paceline.types import ROOT, Budget, Law


class LevelGrowth(Growth):
    """Gives every node of a level the same number of draws, allotted before the first is made."""

    def __init__(self, widths: Sequence[int]) -> None:
        """Set the draws per node by level, the last for all deeper ones. Raises InvalidOption."""
        if not widths or min(widths) < 1:
            raise InvalidOption(
                f"growth '{self.name}' needs branching factors of 1 or more, not {list(widths)}"
            )
        self._widths = tuple(widths)

    @property
    def chain(self) -> bool:
        return max(self._widths) == 1

    @abstractmethod
    def _level(
        self, rows: list[Law], counts: list[int], names: Names, randomness: Randomness
    ) -> list[list[int]]:
        # Tokens of the children, per row at most its count, in the order drawn.
        ...

    def grow(self, budget: Budget, randomness: Randomness, position: int) -> Growing:
        # A token drawn again under one parent is the same node again.
        sapling = Sapling(budget, position)
        draws: dict[int, tuple[int, ...]] = {}
        level = [ROOT]
        for depth in range(budget.depth):
            width = self._widths[min(depth, len(self._widths) - 1)]
            counts = [min(width, sapling.room - used) for used in range(0, sapling.room, width)]
            parents = level[: len(counts)]
            if not parents:
                break
            rows = yield from sapling.ask(parents)
            names = sapling.names(parents[0])
            drawn = self._level(rows, counts[: len(parents)], names, randomness)
            level = []
            for parent, tokens in zip(parents, drawn, strict=True):
                nodes: dict[int, int] = {}
                for token in tokens:
                    if token not in nodes:
                        nodes[token] = sapling.add(parent, token)
                level += nodes.values()
                if len(nodes) < len(tokens):
                    draws[parent] = tuple(nodes[token] for token in tokens)
        return sapling.finish(self.kind, draws)
