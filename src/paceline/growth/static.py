"""Static draft trees, as in Medusa (Cai et al. 2024, arXiv:2401.10774)."""

from __future__ import annotations

from typing import ClassVar

from paceline.growth.base import Growing, Growth, Sapling
from paceline.randomness import Randomness
from paceline.sampling import top_k_ids
from paceline.shapes.static import StaticShape, layout
from paceline.types import ROOT, Budget, LawKind


class Static(Growth):
    """A fixed shape filled by rank; scores are path probabilities."""

    name: ClassVar[str] = "static"
    kind: ClassVar[LawKind | None] = None
    soft: ClassVar[bool] = True

    def __init__(self, shape: StaticShape) -> None:
        """Set the shape. Raises ValueError if it is malformed."""
        self._layout = layout(shape)

    @property
    def chain(self) -> bool:
        depths = self._layout.depths
        return len(set(depths.tolist())) == len(depths)

    def grow(self, budget: Budget, randomness: Randomness, position: int) -> Growing:
        # Ranks that a distribution has no token for stay empty, with all nodes below them.
        sapling = Sapling(budget, position)
        parents, ranks, depths = (each.tolist() for each in self._layout)
        shape = [node for node, depth in enumerate(depths) if depth <= budget.depth]
        shape = shape[: max(budget.nodes, 0)]
        grown = {ROOT: ROOT}  # from nodes of the shape to nodes of the draft
        scores: list[float] = []
        for depth in range(1, 1 + max((depths[node] for node in shape), default=0)):
            level = [node for node in shape if depths[node] == depth and parents[node] in grown]
            asked = list(dict.fromkeys(parents[node] for node in level))
            if not asked:
                break
            rows = yield from sapling.ask([grown[parent] for parent in asked])
            laws = dict(zip(asked, rows, strict=True))
            widest = 1 + max(ranks[node] for node in level)
            best = {parent: top_k_ids(q.probs, widest).tolist() for parent, q in laws.items()}
            for node in level:
                parent = parents[node]
                q, order = laws[parent], best[parent]
                chance = float(q.probs[order[ranks[node]]]) if ranks[node] < len(order) else 0.0
                if chance > 0:
                    above = 1.0 if parent == ROOT else scores[grown[parent]]
                    grown[node] = sapling.add(grown[parent], q.token(order[ranks[node]]))
                    scores.append(above * min(1.0, chance))
        return sapling.finish(self.kind, scores=scores)
