"""EAGLE-2 dynamic draft trees: expand, then rerank (Li et al. 2024, arXiv:2406.16858)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from paceline.core import tree as trees
from paceline.core.types import ROOT, Budget, Distribution, SamplingScheme
from paceline.errors import InvalidOption
from paceline.sampling.gumbel import gumbel_top_k
from paceline.sampling.randomness import Draw, Purpose, Randomness
from paceline.sampling.sampler import top_k_ids
from paceline.trees.base import Growing, LevelExpansion, Names, TreeBuilder, TreeExpansion
from paceline.trees.shapes import StaticShape, layout


class ExpandRerank(TreeExpansion):
    """Beam search that reranks all stored nodes by path probability.

    A node is expanded only while a child could still be among the best: same draft, fewer
    forwards. Deterministic; scores are draft probabilities.
    """

    name: ClassVar[str] = "expand-rerank"
    guarantee = "deterministic"
    paper = "EAGLE-2, Li et al. 2024, arXiv:2406.16858"
    kind: ClassVar[SamplingScheme | None] = None
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
        builder = TreeBuilder(budget, position)
        scores = builder.scores
        depth = budget.depth if self._levels is None else min(budget.depth, self._levels)
        beam = [ROOT]
        for _ in range(depth if budget.nodes > 0 else 0):
            if not beam:
                break
            rows = yield from builder.ask(beam)
            level: list[int] = []
            for parent, q in zip(beam, rows, strict=True):
                above = builder.reached(parent)
                for index in top_k_ids(q.probs, min(self._width, budget.nodes)).tolist():
                    chance = min(1.0, float(q.probs[index]))
                    if chance > 0:
                        level.append(builder.add(parent, q.token(index), above * chance))
            # Children score no higher than their parent, so those of the last would come too late.
            best = _best(range(len(scores)), scores, budget.nodes - 1)
            hopeful = {node for node in best if scores[node] >= self._floor}
            beam = _best(hopeful.intersection(level), scores, self._width)
        stored = builder.finish(self.kind)
        kept = sorted(_best(range(len(scores)), scores, budget.nodes))
        return trees.take(stored, np.array(kept, dtype=np.int64))


def _best(nodes: Iterable[int], scores: list[float], count: int) -> list[int]:
    # Ties go to the elder node.
    return sorted(nodes, key=lambda node: (-scores[node], node))[:count]


class SharedNoise(LevelExpansion):
    """Children are the top tokens under the Gumbel noise of their position.

    Deterministic given that noise, so every rule for deterministic drafts is exact.
    """

    name: ClassVar[str] = "shared-noise"
    guarantee = "deterministic, given the target's noise"
    paper = "Gumbel coupling, Daliri et al. 2025, arXiv:2408.07978"
    kind: ClassVar[SamplingScheme | None] = None

    def _children(self, q: Distribution, count: int, names: Names, draws: Randomness) -> list[int]:
        if len(q.probs) == 1:  # as at temperature 0: no noise can change the order
            return [q.token(0)]
        return gumbel_top_k(q, draws.noise(Draw(names.position, Purpose.NOISE)), count)


class Static(TreeExpansion):
    """A fixed shape filled by rank; scores are path probabilities."""

    name: ClassVar[str] = "static"
    guarantee = "deterministic"
    requires = "a published shape, or rank accuracies"
    paper = "Medusa, Cai et al. 2024, arXiv:2401.10774"
    kind: ClassVar[SamplingScheme | None] = None
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
        builder = TreeBuilder(budget, position)
        parents, ranks, depths = (each.tolist() for each in self._layout)
        shape = [node for node, depth in enumerate(depths) if depth <= budget.depth]
        shape = shape[: max(budget.nodes, 0)]
        grown = {ROOT: ROOT}  # from nodes of the shape to nodes of the draft
        for depth in range(1, 1 + max((depths[node] for node in shape), default=0)):
            level = [node for node in shape if depths[node] == depth and parents[node] in grown]
            asked = list(dict.fromkeys(parents[node] for node in level))
            if not asked:
                break
            rows = yield from builder.ask([grown[parent] for parent in asked])
            distributions = dict(zip(asked, rows, strict=True))
            widest = 1 + max(ranks[node] for node in level)
            best = {
                parent: top_k_ids(q.probs, widest).tolist() for parent, q in distributions.items()
            }
            for node in level:
                parent = parents[node]
                q, order = distributions[parent], best[parent]
                chance = float(q.probs[order[ranks[node]]]) if ranks[node] < len(order) else 0.0
                if chance > 0:
                    score = builder.reached(grown[parent]) * min(1.0, chance)
                    grown[node] = builder.add(grown[parent], q.token(order[ranks[node]]), score)
        return builder.finish(self.kind)
