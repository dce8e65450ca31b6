"""Drafting with the target's own noise, for coupled verification (Gumbel coupling: Daliri et al.
2025, arXiv:2408.07978).

The target's token at a position will be argmax(log p + g), with noise g keyed by seed and position.
The likeliest candidates, seen from a draft law q, are the largest entries of log q + g.
"""

from __future__ import annotations

from typing import ClassVar

from paceline.growth.base import Names
from paceline.growth.levels import LevelGrowth
from paceline.noise import finishers
from paceline.randomness import Draw, Purpose, Randomness
from paceline.types import Law, LawKind


class SharedNoise(LevelGrowth):
    """Children are the best tokens under the noise of their position, the best first.

    The draft is a function of committed tokens and that noise, so it has no law, and every rule
    that takes deterministic drafts is exact for it.
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
