"""RSD-C (Jeon et al. 2024, arXiv:2402.14160): sampling without replacement, by branching factors.

Sequoia (Chen et al. 2024, arXiv:2402.12374) samples children the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from paceline.growth.base import Names
from paceline.growth.draws import race, successive
from paceline.growth.levels import LevelGrowth
from paceline.randomness import Randomness
from paceline.types import Law, LawKind


class Branching(LevelGrowth):
    """Children sampled without replacement.

    By default one after another from the renormalised remainder; with `noise` by Gumbel-top-k as in
    the paper: the same distribution in one pass, faster from about three children on.
    """

    name: ClassVar[str] = "branching"
    kind: ClassVar[LawKind | None] = "without_replacement"

    def __init__(self, widths: Sequence[int], *, noise: bool = False) -> None:
        super().__init__(widths)
        self._noise = noise

    def _level(
        self, rows: list[Law], counts: list[int], names: Names, randomness: Randomness
    ) -> list[list[int]]:
        def children(q: Law, count: int) -> list[int]:
            if not self._noise:
                return successive(q, count, names, randomness)
            uniform = randomness.uniform(len(q.probs), names())
            return [q.token(index) for index in race(q.probs, uniform, count).tolist()]

        return list(map(children, rows, counts))
