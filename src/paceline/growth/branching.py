"""Branching without replacement, one factor per level: RSD-C (Jeon et al. 2024, arXiv:2402.14160).

Sequoia (Chen et al. 2024, arXiv:2402.12374) draws children the same way.
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
    """Children drawn without replacement.

    By default they are drawn one after another from the renormalised remainder. With `noise` they
    are the Gumbel-top-k of the row, as in the paper: the same law of ordered children, drawn in
    one pass over the row, which is faster from about three children on.
    """

    name: ClassVar[str] = "branching"
    kind: ClassVar[LawKind | None] = "without_replacement"

    def __init__(self, widths: Sequence[int], *, noise: bool = False) -> None:
        """Set the branching factors.

        Args:
            widths: children per node, by level; the last holds for all deeper levels.
            noise: draw by perturbation instead of one after another.

        Raises:
            InvalidOption: there are no widths, or one is below 1.
        """
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
