"""EAGLE-2 dynamic draft trees: expand, then rerank (Li et al. 2024, arXiv:2406.16858)."""

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
    """Beam search that reranks all stored nodes by path probability.

    A node is expanded only while a child could still be among the best: same draft, fewer
    forwards. Deterministic; scores are draft probabilities.
    """

    name: ClassVar[str] = "expand-rerank"
    kind: ClassVar[LawKind | None] = None
    soft: ClassVar[bool] = True

    def __init__(self, width: int = 4, levels: int | None = None, floor: float = 0.0) -> None:
        """Set the beam; `floor` is the least score to expand. Raises InvalidOption."""
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
        return self._width == 1

    def grow(self, budget: Budget, randomness: Randomness, position: int) -> Growing:
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
    # Ties go to the elder node.
    return sorted(nodes, key=lambda node: (-scores[node], node))[:count]
