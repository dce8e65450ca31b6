"""Budgets for drafts that cannot be pruned: the depth that pays, decided before drafting."""

from __future__ import annotations

from collections.abc import Sequence as List

from paceline import tree as trees
from paceline.controllers.chain_depths import ChainReach, best_depths
from paceline.controllers.cost import CostModel
from paceline.sequence import Sequence
from paceline.types import Budget, TokenTree, Verdict

_NOTHING = Budget(0, 0)

# Plain steps after which a drafter that had stopped to pay is tried again with one token.
_PROBE = 32

# Plain steps of the same sequences that share one decision: they show next to nothing new.
_LOOK = 8

# Weight of one step in the cost of a drafted level.
_SMOOTHING = 0.05


class Chains:
    """Size chains by the acceptance of earlier steps and the cost of a drafted level."""

    def __init__(self, limit: Budget, acceptance: float, level_seconds: float) -> None:
        """Start with priors: a token's acceptance probability, and the cost of one more level."""
        self._limit = limit
        self._reach = ChainReach(limit.depth, acceptance)
        self._level_seconds = level_seconds
        self._plain = 0
        self._decided: tuple[list[int], int] | None = None
        # Whether the last budgets are those of an earlier step, which were none.
        self.resting = False

    def budgets(self, sequences: List[Sequence], costs: CostModel, beside: int) -> list[Budget]:
        """Return the depths that commit most tokens per second together (`best_depths`)."""
        self._reach.step += 1
        asking = [sequence.id for sequence in sequences], beside
        self.resting = self._plain % _LOOK != 0 and asking == self._decided
        if not self.resting:
            self._decided = asking
            depths = self._best(sequences, costs, beside)
            if any(depths):
                self._plain = 0
                return [Budget(depth, depth) for depth in depths]
        self._plain += 1
        if self._plain < _PROBE:
            return [_NOTHING] * len(sequences)
        self._plain, self.resting = 0, False  # what does not pay now may pay later in the text
        return [Budget(1, 1)] * len(sequences)

    def learn(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        draft_seconds: float,
    ) -> None:
        """Update acceptance and level cost after a step; `draft_seconds` is its drafting time."""
        deepest = 0
        for sequence, draft, verdict in zip(sequences, drafts, verdicts, strict=True):
            if len(draft):
                depth = trees.deepest(draft)
                deepest = max(deepest, depth)
                self._reach.learn(sequence.id, depth, len(verdict.path))
        if deepest:
            self._level_seconds += _SMOOTHING * (draft_seconds / deepest - self._level_seconds)

    def close(self, sequence: Sequence) -> None:
        self._reach.close(sequence.id)

    def _best(self, sequences: List[Sequence], costs: CostModel, beside: int) -> list[int]:
        reach = []
        for sequence in sequences:
            allowed = sequence.speculation.cap(self._limit).depth
            reach.append(self._reach.reach(sequence.id, allowed))
        return best_depths(reach, costs, self._level_seconds, beside)
