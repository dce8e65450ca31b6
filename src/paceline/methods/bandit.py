"""Multi-armed bandit over draft sizes 0, 1, 2, 4 ...; 0 is plain decoding (`Arms` chooses). It
reads neither scores nor measured costs; where both are good, the cost model learns faster. A
choice is kept for a few steps, since a new forward size may cost extra.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from paceline.core import tree as trees
from paceline.core.options import require
from paceline.core.types import Budget, ProbArray
from paceline.drafters.combine.bandit import Arms
from paceline.policy.acceptance import RecentReach
from paceline.policy.controller import Controller
from paceline.sampling.generation import Generation, VerifiedDraft


class Bandit(Controller):
    """Choose the draft size per sequence and batch size by tokens per second."""

    name: ClassVar[str] = "bandit"
    paper = "discounted Thompson sampling, Qi et al. 2023, arXiv:2305.10718"

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

    def budgets(self, sequences: Sequence[Generation]) -> list[Budget]:
        ids = [sequence.id for sequence in sequences]
        if not self._left or self._chosen.keys() != set(ids):
            self._left = self._keep
            chosen = self._arms.choose(ids, list(map(self._open, sequences)), self._guess())
            self._chosen = dict(zip(ids, chosen, strict=True))
        self._left -= 1
        return [self._arms_of[self._chosen[id]] for id in ids]

    def observe(
        self, step: Sequence[VerifiedDraft], draft_seconds: float, forward_seconds: float
    ) -> None:
        ids = [each.sequence.id for each in step]
        gained = [len(each.verdict.path) for each in step]
        self._recent.fade()
        for each, tokens in zip(step, gained, strict=True):
            self._recent.add(trees.deepest(each.draft), tokens)
        arms = [self._chosen[id] for id in ids]
        self._arms.observe(ids, arms, gained, draft_seconds + forward_seconds)

    def close(self, sequence: Generation) -> None:
        self._arms.close(sequence.id)

    def _open(self, sequence: Generation) -> list[int]:
        # Of sizes that the request's cap makes equal, the smallest.
        capped = [sequence.speculation.cap(arm) for arm in self._arms_of]
        return [arm for arm, budget in enumerate(capped) if budget not in capped[:arm]]

    def _guess(self) -> ProbArray:
        # The gain of each size lately, were drafts chains.
        reach = self._recent.reach
        return np.array([reach[: arm.depth].sum() for arm in self._arms_of])
