"""Expand and rerank: the dynamic tree of EAGLE-2 (Li et al. 2024, arXiv:2406.16858)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from paceline import tree as trees
from paceline.errors import InvalidOption
from paceline.growth.base import Growing, Growth, Sapling
from paceline.randomness import Randomness
from paceline.sampling import top_k_ids
from paceline.types import ROOT, Budget, LawKind


class ExpandRerank(Growth):
    """The likeliest nodes of a beam search that forgets nothing.

    A node's score is the product of the draft probabilities along its path. Every node of the beam
    stores its likeliest children, the best of a level are the next beam, and of all that was
    stored the best nodes are the draft: a likely node that left the beam early may be among them.
    Nothing is drawn, so the draft is a function of the laws and has none itself. Its scores are the
    drafter's; a controller calibrates them by what is accepted.

    A node is expanded only while a child of it could still be among the best, which changes no
    draft and saves draft forwards.
    """

    name: ClassVar[str] = "expand-rerank"
    kind: ClassVar[LawKind | None] = None
    soft: ClassVar[bool] = True

    def __init__(self, width: int = 4, levels: int | None = None, floor: float = 0.0) -> None:
        """Set the beam.

        Args:
            width: nodes in the beam, and children stored of each.
            levels: deepest level; None for that of the budget.
            floor: nodes with a score below this are not expanded, in [0, 1).

        Raises:
            InvalidOption: one of them is out of range.
        """
        if width < 1 or (levels is not None and levels < 1) or not 0 <= floor < 1:
            raise InvalidOption(
                f"growth 'expand-rerank' needs a width and levels of 1 or more and a floor in "
                f"[0, 1), not {width}, {levels} and {floor}"
            )
        self._width = width
        self._levels = levels
        self._floor = floor

    @property
    def chain(self) -> bool:
        """Whether the beam is one node wide."""
        return self._width == 1

    def grow(self, budget: Budget, randomness: Randomness, position: int) -> Growing:
        """Grow level by level, then keep the budget's best nodes of all."""
        sapling = Sapling(budget, position)
        scores: list[float] = []
        depth = budget.depth if self._levels is None else min(budget.depth, self._levels)
        beam = [ROOT]
        for _ in range(depth if budget.nodes > 0 else 0):
            if not beam:
                break
            rows = yield from sapling.ask(beam)
            level: list[int] = []
            for parent, q in zip(beam, rows, strict=True):
                above = 1.0 if parent == ROOT else scores[parent]
                for index in top_k_ids(q.probs, min(self._width, budget.nodes)).tolist():
                    chance = min(1.0, float(q.probs[index]))
                    if chance > 0:
                        level.append(sapling.add(parent, q.token(index)))
                        scores.append(above * chance)
            # Children score no higher than their parent, so those of the last would come too late.
            best = _likeliest(range(len(scores)), scores, budget.nodes - 1)
            hopeful = {node for node in best if scores[node] >= self._floor}
            beam = _likeliest(hopeful.intersection(level), scores, self._width)
        stored = sapling.finish(self.kind, scores=scores)
        kept = sorted(_likeliest(range(len(scores)), scores, budget.nodes))
        return trees.take(stored, np.array(kept, dtype=np.int64))


def _likeliest(nodes: Iterable[int], scores: list[float], count: int) -> list[int]:
    """The nodes with the highest scores, best first, the elder first among equals."""
    return sorted(nodes, key=lambda node: (-scores[node], node))[:count]
