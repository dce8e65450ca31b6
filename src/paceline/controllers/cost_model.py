"""Choose how much to verify so that committed tokens per second are highest.

A draft's nodes carry estimated probabilities of acceptance. Verifying a set of nodes S beside B
roots commits B + sum(S) tokens in expected value and costs time(B + |S|), so the best set holds
the likeliest nodes of the whole batch, as many as raise the ratio; speculation fades out by
itself as a batch fills the machine. Estimates are calibrated per sequence against what was
accepted. All of it depends on committed tokens and earlier steps alone, and deterministic drafts
may be pruned freely, so no guarantee is touched.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence as List
from typing import ClassVar, Self

import numpy as np

from paceline import tree as trees
from paceline.controllers.base import Controller, ControllerContext
from paceline.controllers.cost import CostModel
from paceline.controllers.sizing import Sizing
from paceline.sequence import Sequence
from paceline.types import ROOT, Budget, TokenTree, Verdict

_PRIOR = 4.0
"""Expected acceptances that the global calibration counts for in a sequence's own."""

_MEMORY = 0.98
"""Decay per step of calibration counts."""


_ASK_LEAST = 8
"""Fewest nodes to ask a drafter for that prunes well: growing drafts costs time too."""


_PROBE = 32
"""Plain steps after which a drafter that had stopped to pay is tried again with one token."""


class _Ratio:
    """Accepted over predicted, with decay."""

    def __init__(self) -> None:
        self.accepted = 0.0
        self.predicted = 0.0

    def add(self, accepted: float, predicted: float) -> None:
        self.accepted = _MEMORY * self.accepted + accepted
        self.predicted = _MEMORY * self.predicted + predicted

    def value(self, prior: float, weight: float) -> float:
        return (self.accepted + prior * weight) / (self.predicted + weight)


class CostModelController(Controller):
    """Picks the number of nodes per step from c(n), draft cost and calibrated acceptance."""

    name: ClassVar[str] = "cost-model"

    def __init__(
        self,
        costs: CostModel,
        *,
        nodes: int = 24,
        depth: int = 8,
        chain_acceptance: float = 0.6,
        draft_level_seconds: float = 0.0,
    ) -> None:
        """Bind the measured costs.

        Args:
            costs: seconds by rows of a forward.
            nodes: largest draft to ask a drafter for.
            depth: deepest draft to ask for.
            chain_acceptance: first guess of a drafted token's acceptance, for drafts that come
                without estimates.
            draft_level_seconds: first guess of what one more drafted level costs.
        """
        self.costs = costs
        self._limit = Budget(nodes, depth)
        self._global = _Ratio()
        self._own: dict[int, _Ratio] = {}
        # For drafts without estimates, taken as chains: how often a node at depth d + 1 stood,
        # given its parent did.
        self._stood = np.full(depth, chain_acceptance * 8)
        self._tried = np.full(depth, 8.0)
        self._level_seconds = draft_level_seconds
        self._estimates = True
        self._proposed: dict[int, TokenTree] = {}
        self._idle = 0
        self._verified = nodes  # of the largest draft of the last step
        self._sizing = Sizing()

    @classmethod
    def create(cls, context: ControllerContext) -> Self:
        """Measured costs, with sizes that the user gave as upper limits."""
        costs = copy.deepcopy(context.costs())  # refined by this controller alone
        return cls(costs, **context.chosen(cls))

    def budgets(self, sequences: List[Sequence]) -> list[Budget]:
        """The largest draft if nodes can be pruned later, else the best depth of a chain."""
        if self._estimates:
            # Twice what was verified last: a draft in good text grows to the limit in two steps.
            nodes = min(self._limit.nodes, max(_ASK_LEAST, 2 * self._verified))
            return [Budget(nodes, self._limit.depth)] * len(sequences)
        depth = self._best_depth(len(sequences))
        self._idle = 0 if depth else self._idle + 1
        if self._idle == _PROBE:  # what does not pay now may pay later in the text
            self._idle, depth = 0, 1
        return [Budget(depth, depth)] * len(sequences)

    def select(self, sequences: List[Sequence], drafts: List[TokenTree]) -> list[TokenTree]:
        """Keep the likeliest nodes of the batch while they raise committed tokens per second."""
        if any(map(len, drafts)):
            self._estimates = all(
                draft.law is None and (not len(draft) or draft.scores is not None)
                for draft in drafts
            )
        self._proposed = dict(zip((sequence.id for sequence in sequences), drafts, strict=True))
        if not self._estimates:
            self.rows = 0
            return list(drafts)
        trust = [self._calibration(sequence) for sequence in sequences]
        thin = [self._thin(*each) for each in zip(sequences, drafts, trust, strict=True)]
        scored = [
            (min(scores[node] * factor, 1.0), index, node)
            for index, (factor, (scores, nodes)) in enumerate(zip(trust, thin, strict=True))
            for node in nodes
        ]
        scored.sort(key=_likeliest_first)
        ranked = [score for score, _, _ in scored]
        count, self.rows = self._sizing.choose(ranked, len(sequences), self.costs)
        chosen: list[list[int]] = [[] for _ in drafts]
        for _, index, node in scored[:count]:
            chosen[index].append(node)
        out = [_part(draft, nodes) for draft, nodes in zip(drafts, chosen, strict=True)]
        self._verified = max(map(len, out))
        return out

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        draft_seconds: float,
        forward_seconds: float,
    ) -> None:
        """Calibrate estimates and costs by what happened."""
        rows = len(sequences) + sum(len(draft) for draft in drafts)
        size = self.costs.size(max(rows, self.rows))
        if self._sizing.ran(size):
            self.costs.observe(size, forward_seconds)
        depth = 0
        for sequence, draft, verdict in zip(sequences, drafts, verdicts, strict=True):
            if not len(draft):
                self._learn_unverified(sequence, verdict)
            elif draft.scores is not None:
                self._learn(sequence, len(verdict.path), float(draft.scores.sum()))
            else:
                deepest = int(trees.depths(draft).max())
                depth = max(depth, deepest)
                self._learn_chain(deepest, len(verdict.path))
        if depth:
            self._level_seconds += 0.05 * (draft_seconds / depth - self._level_seconds)

    def close(self, sequence: Sequence) -> None:
        """Drop the sequence's own calibration."""
        self._own.pop(sequence.id, None)

    def _learn(self, sequence: Sequence, accepted: float, predicted: float) -> None:
        self._global.add(accepted, predicted)
        self._own.setdefault(sequence.id, _Ratio()).add(accepted, predicted)

    def _learn_unverified(self, sequence: Sequence, verdict: Verdict) -> None:
        """A draft that was dropped whole tells whether its first tokens would have stood.

        Without this, a drafter that did not pay once would never be tried again.
        """
        draft = self._proposed.get(sequence.id)
        if draft is None or draft.scores is None or not len(draft):
            return
        first = draft.parents == ROOT
        stood = bool((draft.tokens[first] == verdict.next_token).any())
        self._learn(sequence, float(stood), float(draft.scores[first].sum()))

    def _calibration(self, sequence: Sequence) -> float:
        shared = self._global.value(1.0, 2 * _PRIOR)
        own = self._own.get(sequence.id)
        return shared if own is None else own.value(shared, _PRIOR)

    def _thin(
        self, sequence: Sequence, draft: TokenTree, trust: float
    ) -> tuple[list[float], List[int]]:
        """All scores, and the nodes without side branches that promise less than they cost.

        In layout "exact" every root-to-leaf path attends to the whole context on its own. The
        likeliest path is free of that; another must promise more tokens than plain decoding would
        commit in the time it takes, and all others together what branching itself costs.
        """
        if draft.scores is None or not len(draft):
            return [], ()
        scores, parents = draft.scores.tolist(), draft.parents.tolist()
        everything = range(len(scores))
        if parents == list(range(-1, len(parents) - 1)):
            return scores, everything
        plain = self.costs.time(1)
        price, fork = self.costs.branch * len(sequence.tokens) / plain, self.costs.fork / plain
        if not price and not fork:
            return scores, everything
        promise = [score * trust for score in scores]
        best: dict[int, int] = {}
        for node in reversed(everything):  # children before parents
            if node in best:
                promise[node] += promise[best[node]]
            rival = best.get(parents[node])
            if rival is None or promise[node] >= promise[rival]:
                best[parents[node]] = node
        likeliest, kept, gain = {ROOT}, {ROOT}, 0.0
        for node, parent in enumerate(parents):
            first = best[parent] == node
            if first and parent in likeliest:
                likeliest.add(node)
            if parent in kept and (first or promise[node] > price):
                kept.add(node)
                gain += 0.0 if first else promise[node] - price
        return scores, sorted((kept if gain > fork else likeliest) - {ROOT})

    def _best_depth(self, roots: int) -> int:
        reach = np.cumprod(self._stood / self._tried)
        committed = roots * (1 + np.concatenate([[0.0], np.cumsum(reach)]))
        depths = range(len(committed))
        seconds = self.costs.times(roots * (1 + np.arange(len(committed))))
        return int(np.argmax(committed / (seconds + np.array(depths) * self._level_seconds)))

    def _learn_chain(self, drafted: int, accepted: int) -> None:
        for depth in range(min(drafted, accepted + 1, len(self._tried))):
            self._tried[depth] = _MEMORY * self._tried[depth] + 1
            self._stood[depth] = _MEMORY * self._stood[depth] + (depth < accepted)


def _likeliest_first(node: tuple[float, int, int]) -> float:
    return -node[0]


def _part(draft: TokenTree, nodes: list[int]) -> TokenTree:
    """The draft cut to nodes whose ancestors are among them too (equal scores may split a path)."""
    if len(nodes) == len(draft):
        return draft
    kept = {ROOT}
    for node in sorted(nodes):
        if int(draft.parents[node]) in kept:
            kept.add(node)
    return trees.take(draft, np.array(sorted(kept - {ROOT}), dtype=np.int64))
