"""Draft as long as the drafter is confident.

Kangaroo (Liu et al. 2024, arXiv:2404.18911) stops drafting where the likeliest token has less than
a fixed probability, SWIFT (Xia et al. 2024, arXiv:2410.06916) likewise, and SpecDec++ (Huang et
al. 2024, arXiv:2405.19715) where the chance of at least one rejection, one minus the product of
the estimates along the path, exceeds a constant. Here the rule stands on such products, for trees
as for chains: a node is kept while the estimated probability that it is accepted is at least
`threshold`.

A draft that is a function of the text may be pruned after the fact. A drawn one may not, since the
estimate of a token would decide about that token (predictability); where drafts are drawn, or come
without estimates, the depth is set ahead, by how deep recent drafts of the sequence have stood.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import ClassVar

import numpy as np

from paceline import tree as trees
from paceline.controllers.base import Controller, shallower
from paceline.controllers.recent import RecentReach
from paceline.options import require
from paceline.sequence import Sequence
from paceline.types import Budget, TokenTree, Verdict


class Confidence(Controller):
    """Verifies what is likely enough to be accepted; always asks for one token or more."""

    name: ClassVar[str] = "confidence"

    def __init__(self, threshold: float = 0.1, *, nodes: int = 16, depth: int = 8) -> None:
        """Set the threshold.

        Args:
            threshold: least estimated probability of acceptance, in (0, 1]. SpecDec++ keeps 0.7,
                for drafts that cost much; a row more costs a few percent of a small forward, and
                pays from about 0.1 on.
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

    def budgets(self, sequences: List[Sequence]) -> list[Budget]:
        """All that may be drafted where it can be pruned later, else as deep as lately stood."""
        return [self._budget(sequence) for sequence in sequences]

    def select(self, sequences: List[Sequence], drafts: List[TokenTree]) -> list[TokenTree]:
        """The nodes of deterministic drafts that are likely enough; other drafts unchanged."""
        return [self._select(*each) for each in zip(sequences, drafts, strict=True)]

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        draft_seconds: float,
        forward_seconds: float,
    ) -> None:
        """Count how deep each draft stood."""
        for sequence, draft, verdict in zip(sequences, drafts, verdicts, strict=True):
            drafted = trees.deepest(draft)
            recent = self._recent_of(sequence)
            recent.fade()
            recent.add(drafted, len(verdict.path))

    def close(self, sequence: Sequence) -> None:
        """Forget the sequence's recent drafts."""
        self._recent.pop(sequence.id, None)
        self._prunable.pop(sequence.id, None)

    def _budget(self, sequence: Sequence) -> Budget:
        if self._prunable.get(sequence.id, True):
            return self._limit
        likely = self._recent_of(sequence).reach >= self._threshold
        return shallower(self._limit, max(1, int(likely.sum())))

    def _select(self, sequence: Sequence, draft: TokenTree) -> TokenTree:
        if not len(draft):
            return draft
        self._prunable[sequence.id] = draft.law is None and draft.scores is not None
        if draft.law is not None or draft.scores is None:
            return draft
        # No node has a higher score than its parent, so what is kept is a tree.
        keep = np.flatnonzero(draft.scores >= self._threshold)
        return draft if len(keep) == len(draft) else trees.take(draft, keep)

    def _recent_of(self, sequence: Sequence) -> RecentReach:
        return self._recent.setdefault(sequence.id, RecentReach(self._limit.depth))
