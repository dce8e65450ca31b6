"""Greedy draft sampling: top tokens and one sampled from the rest (Hu et al. 2025,
arXiv:2502.18779).
"""

from __future__ import annotations

from typing import ClassVar

from paceline.growth.base import Names
from paceline.growth.levels import LevelGrowth
from paceline.law import without
from paceline.randomness import Randomness
from paceline.sampling import top_k_ids
from paceline.types import Law, LawKind


class TopAndOne(LevelGrowth):
    """All children but the last are the top tokens of q; ties go to the lower id."""

    name: ClassVar[str] = "top-and-one"
    kind: ClassVar[LawKind | None] = "top_and_one"

    def _level(
        self, rows: list[Law], counts: list[int], names: Names, randomness: Randomness
    ) -> list[list[int]]:
        def children(q: Law, count: int) -> list[int]:
            tokens: list[int] = []
            rest = q
            for index in top_k_ids(q.probs, count).tolist()[: count - 1]:
                left = without(rest, q.token(index))
                if left is None:  # something must be left to draw from
                    break
                rest = left
                tokens.append(q.token(index))
            return [*tokens, rest.token(randomness.choice(rest.probs, names()))]

        return list(map(children, rows, counts))
