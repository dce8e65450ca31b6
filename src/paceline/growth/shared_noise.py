"""Gumbel coupling (Daliri et al. 2025, arXiv:2408.07978): drafts with the target's Gumbel noise.

The target will take argmax(log p + g), with g keyed by seed and position; children are the
largest entries of log q + g.
"""

from __future__ import annotations

from typing import ClassVar

from paceline.growth.base import Names
from paceline.growth.levels import LevelGrowth
from paceline.noise import finishers
from paceline.randomness import Draw, Purpose, Randomness
from paceline.types import Law, LawKind


class SharedNoise(LevelGrowth):
    """Children are the top tokens under the Gumbel noise of their position.

    Deterministic given that noise, so every rule for deterministic drafts is exact.
    """

    name: ClassVar[str] = "shared-noise"
    kind: ClassVar[LawKind | None] = None

    def _level(
        self, rows: list[Law], counts: list[int], names: Names, randomness: Randomness
    ) -> list[list[int]]:
        noise = None
        drawn: list[list[int]] = []
        for q, count in zip(rows, counts, strict=True):
            if len(q.probs) == 1:  # as at temperature 0: no noise can change the order
                drawn.append([q.token(0)])
                continue
            if noise is None:
                noise = randomness.noise(Draw(names.position, Purpose.NOISE))
            drawn.append(finishers(q, noise, count))
        return drawn
