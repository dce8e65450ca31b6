"""I.i.d. children: SpecInfer (Miao et al. 2023, arXiv:2305.09781); width 1 is a sampled chain."""

from __future__ import annotations

from typing import ClassVar

from paceline.growth.base import Names
from paceline.growth.levels import LevelGrowth
from paceline.randomness import Randomness
from paceline.types import Law, LawKind


class Iid(LevelGrowth):
    """Children sampled independently; repeats are one node drawn several times."""

    name: ClassVar[str] = "iid"
    kind: ClassVar[LawKind | None] = "iid"

    def _level(
        self, rows: list[Law], counts: list[int], names: Names, randomness: Randomness
    ) -> list[list[int]]:
        return [
            [q.token(randomness.choice(q.probs, names())) for _ in range(count)]
            for q, count in zip(rows, counts, strict=True)
        ]
