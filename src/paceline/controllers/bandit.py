"""A bandit over draft sizes: nothing is assumed, what commits most tokens per second is kept.

The arms are sizes, 0, 1, 2, 4 and so on; 0 is plain decoding. See `paceline.controllers.arms` for
how one is chosen per sequence. Since it may cost extra to change the size of a forward, a choice
is kept for a few steps. Neither the drafter's estimates nor measured costs are read, so it serves
drafters without estimates and machines whose costs change; where both are good, the cost model
learns faster. Choices depend on steps that are over and on draws of its own, so they are
predictable and every guarantee is kept.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import ClassVar

import numpy as np

from paceline import tree as trees
from paceline.controllers.arms import Arms
from paceline.controllers.base import Controller
from paceline.controllers.recent import RecentReach
from paceline.options import require
from paceline.sequence import Sequence
from paceline.types import Budget, ProbArray, TokenTree, Verdict


class Bandit(Controller):
    """Tries draft sizes and keeps to the one that pays, per sequence and size of batch."""

    name: ClassVar[str] = "bandit"

    def __init__(self, keep: int = 4, seed: int = 0, *, nodes: int = 16, depth: int = 8) -> None:
        """Set the arms.

        Args:
            keep: steps that a choice is kept, at least 1.
            seed: of the bandit's own draws.
            nodes: largest draft to ask for.
            depth: deepest draft to ask for.

        Raises:
            InvalidOption: a number is out of range.
        """
        require(keep >= 1, "keep", keep, "1 or more")
        require(seed >= 0, "seed", seed, "0 or more")
        powers = [1 << power for power in range(nodes.bit_length()) if 1 << power < nodes]
        self._arms_of = [Budget(size, min(size, depth)) for size in (0, *powers, nodes)]
        self._arms = Arms(len(self._arms_of), seed)
        self._recent = RecentReach(depth)
        self._keep = keep
        self._left = 0
        self._chosen: dict[int, int] = {}

    def budgets(self, sequences: List[Sequence]) -> list[Budget]:
        """The size that each sequence has chosen."""
        ids = [sequence.id for sequence in sequences]
        if not self._left or self._chosen.keys() != set(ids):
            self._left = self._keep
            chosen = self._arms.choose(ids, list(map(self._open, sequences)), self._guess())
            self._chosen = dict(zip(ids, chosen, strict=True))
        self._left -= 1
        return [self._arms_of[self._chosen[id]] for id in ids]

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        draft_seconds: float,
        forward_seconds: float,
    ) -> None:
        """Book tokens and time on the sizes chosen."""
        ids = [sequence.id for sequence in sequences]
        gained = [len(verdict.path) for verdict in verdicts]
        self._recent.fade()
        for draft, tokens in zip(drafts, gained, strict=True):
            self._recent.add(trees.deepest(draft), tokens)
        arms = [self._chosen[id] for id in ids]
        self._arms.observe(ids, arms, gained, draft_seconds + forward_seconds)

    def close(self, sequence: Sequence) -> None:
        """Forget what the sequence was like."""
        self._arms.close(sequence.id)

    def _open(self, sequence: Sequence) -> list[int]:
        """Sizes that the request allows; the largest of those that it makes equal is left out."""
        capped = [sequence.speculation.cap(arm) for arm in self._arms_of]
        return [arm for arm, budget in enumerate(capped) if budget not in capped[:arm]]

    def _guess(self) -> ProbArray:
        """What drafts of each size would have gained lately, were they chains."""
        reach = self._recent.reach
        return np.array([reach[: arm.depth].sum() for arm in self._arms_of])
