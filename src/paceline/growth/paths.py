"""I.i.d. chains merged into a prefix tree: SpecTr (Sun et al. 2023, arXiv:2310.15141) and
multi-path verification.
"""

from __future__ import annotations

from typing import ClassVar

from paceline.errors import InvalidOption
from paceline.growth.base import Growing, Growth, Sapling
from paceline.randomness import Randomness
from paceline.types import ROOT, Budget, LawKind


class Paths(Growth):
    """Several sampled chains. Where nodes run out, later chains end earlier."""

    name: ClassVar[str] = "paths"
    kind: ClassVar[LawKind | None] = "paths"

    def __init__(self, count: int) -> None:
        """Set the number of chains. Raises InvalidOption if it is below 1."""
        if count < 1:
            raise InvalidOption(f"growth 'paths' needs 1 or more paths, not {count}")
        self._count = count

    @property
    def chain(self) -> bool:
        return self._count == 1

    def grow(self, budget: Budget, randomness: Randomness, position: int) -> Growing:
        sapling = Sapling(budget, position)
        paths: list[list[int]] = [[] for _ in range(min(self._count, sapling.room))]
        nodes: dict[tuple[int, int], int] = {}
        live = paths
        for _ in range(budget.depth):
            live = live[: sapling.room]
            if not live:
                break
            parents = [path[-1] if path else ROOT for path in live]
            yield from sapling.ask(list(dict.fromkeys(parents)))
            for path, parent in zip(live, parents, strict=True):
                q = sapling.rows[parent]
                token = q.token(randomness.choice(q.probs, sapling.names(parent)()))
                if (parent, token) not in nodes:
                    nodes[parent, token] = sapling.add(parent, token)
                path.append(nodes[parent, token])
        return sapling.finish(self.kind, paths=[path for path in paths if path])
