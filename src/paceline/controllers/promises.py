"""Calibrated acceptance probabilities of draft nodes, less the price of side branches."""

from __future__ import annotations

from collections.abc import Sequence as List

from paceline import tree as trees
from paceline.calibration import Calibration, corrected
from paceline.controllers.cost import CostModel
from paceline.controllers.side_branches import Priced, Worth, worth_keeping
from paceline.sequence import Sequence
from paceline.types import ROOT, TokenTree, Verdict


class Promises:
    """Acceptance probabilities of the drafts of each step, and their calibration."""

    def __init__(self) -> None:
        self._calibration = Calibration()
        self._proposed: dict[int, TokenTree] = {}

    def note(self, sequences: List[Sequence], drafts: List[TokenTree]) -> None:
        """Note the drafts of this step, before anything is pruned."""
        self._proposed = {s.id: draft for s, draft in zip(sequences, drafts, strict=True)}

    def estimate(self, sequence: Sequence, chance: float) -> float:
        """Return the drafter's score of a token with that probability (inverse calibration)."""
        [estimate] = corrected([chance], 1 / self._calibration.factor(sequence.id))
        return estimate

    def worth(
        self, sequences: List[Sequence], drafts: List[TokenTree], costs: CostModel
    ) -> list[Worth]:
        """Return the nodes, without side branches that gain less than they cost."""
        if not (costs.branch or costs.fork) or all(map(trees.is_chain, drafts)):
            promises = map(self.of, sequences, drafts)
            return [dict(enumerate(promise)) for promise in promises]
        roots = len(sequences)
        rate = roots / costs.time(roots, roots)  # of the batch without drafts
        price = rate * costs.branch
        priced = [
            Priced(
                draft.parents.tolist(),
                self.of(sequence, draft),
                price * len(sequence.tokens),
            )
            for sequence, draft in zip(sequences, drafts, strict=True)
        ]
        return worth_keeping(priced, rate * costs.fork)

    def learn(
        self, sequences: List[Sequence], drafts: List[TokenTree], verdicts: List[Verdict]
    ) -> None:
        """Calibrate by verdicts; an empty draft counts as dropped."""
        for sequence, draft, verdict in zip(sequences, drafts, verdicts, strict=True):
            if len(draft):
                predicted = 0.0 if draft.scores is None else sum(draft.scores.tolist())
                self._calibration.verified(sequence.id, len(verdict.path), predicted)
            else:
                self._learn_unverified(sequence, verdict)

    def close(self, sequence: Sequence) -> None:
        self._calibration.close(sequence.id)

    def of(self, sequence: Sequence, draft: TokenTree) -> list[float]:
        """Return calibrated acceptance probabilities of the nodes."""
        if draft.scores is None:
            return []
        return corrected(draft.scores.tolist(), self._calibration.factor(sequence.id))

    def _learn_unverified(self, sequence: Sequence, verdict: Verdict) -> None:
        # A dropped draft shows whether its first tokens would have been accepted. Without this,
        # a drafter that did not pay once would never be tried again.
        draft = self._proposed.get(sequence.id)
        if draft is None or draft.scores is None or not len(draft):
            return
        nodes = zip(
            draft.tokens.tolist(), draft.parents.tolist(), draft.scores.tolist(), strict=True
        )
        first = {token: score for token, parent, score in nodes if parent == ROOT}
        stood = float(verdict.next_token in first)
        self._calibration.learn(sequence.id, stood, sum(first.values()))
