"""Early exit by confidence, as in Kangaroo (Liu et al. 2024, arXiv:2404.18911), SWIFT (Xia et al.
2024, arXiv:2410.06916) and SpecDec++ (Huang et al. 2024, arXiv:2405.19715): a node is verified if
its acceptance probability (product along the path) is at least `threshold`. Drawn drafts must not
be pruned: their depth follows the recent acceptance of the sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from paceline.core import tree as trees
from paceline.core.options import require
from paceline.core.types import Budget, TokenTree
from paceline.policy.acceptance import RecentReach
from paceline.policy.controller import Controller, shallower
from paceline.sampling.generation import Generation, VerifiedDraft


class Confidence(Controller):
    """Verify nodes that are likely enough to be accepted; always drafts one token or more."""

    name: ClassVar[str] = "confidence"
    requires = "a drafter with estimates, best"
    paper = (
        "after Kangaroo, Liu et al. 2024, arXiv:2404.18911; SpecDec++, Huang et al. 2024, "
        "arXiv:2405.19715"
    )

    def __init__(self, threshold: float = 0.1, *, nodes: int = 16, depth: int = 8) -> None:
        """Set the threshold.

        Args:
            threshold: least acceptance probability, in (0, 1]. SpecDec++ has 0.7, for drafts that
                cost much; rows of a small forward are cheap and pay far below that.
            nodes: largest draft to ask for.
            depth: deepest draft to ask for.

        Raises:
            InvalidOption: the threshold is out of range.
        """
        require(0 < threshold <= 1, "threshold", threshold, "in (0, 1]")
        self._threshold = threshold
        self._limit = Budget(nodes, depth)
        self._recent: dict[int, RecentReach] = {}
        self._prunable: dict[int, bool] = {}

    def budgets(self, sequences: Sequence[Generation]) -> list[Budget]:
        return [self._budget(sequence) for sequence in sequences]

    def select(
        self, sequences: Sequence[Generation], drafts: Sequence[TokenTree]
    ) -> list[TokenTree]:
        return [self._select(*each) for each in zip(sequences, drafts, strict=True)]

    def learn(self, verified: VerifiedDraft) -> None:
        recent = self._recent_of(verified.sequence)
        recent.fade()
        recent.add(trees.deepest(verified.draft), len(verified.verdict.path))

    def close(self, sequence: Generation) -> None:
        self._recent.pop(sequence.id, None)
        self._prunable.pop(sequence.id, None)

    def _budget(self, sequence: Generation) -> Budget:
        if self._prunable.get(sequence.id, True):
            return self._limit
        likely = self._recent_of(sequence).reach >= self._threshold
        return shallower(self._limit, max(1, int(likely.sum())))

    def _select(self, sequence: Generation, draft: TokenTree) -> TokenTree:
        if not len(draft):
            return draft
        self._prunable[sequence.id] = draft.sampling is None and draft.scores is not None
        if draft.sampling is not None or draft.scores is None:
            return draft
        # No node has a higher score than its parent, so what is kept is a tree.
        keep = np.flatnonzero(draft.scores >= self._threshold)
        return draft if len(keep) == len(draft) else trees.take(draft, keep)

    def _recent_of(self, sequence: Generation) -> RecentReach:
        return self._recent.setdefault(sequence.id, RecentReach(self._limit.depth))
