"""Cost-model controller: verify the nodes that maximise committed tokens per second. Verifying
nodes S beside B roots commits B + sum(S) tokens in expectation and costs time(B + |S|); the
likeliest nodes of the whole batch are taken as far as they pay (`sizing.py`). Acceptance
probabilities are calibrated per sequence from past steps, and only deterministic drafts are
pruned: lossless.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence as List
from itertools import accumulate
from operator import itemgetter
from time import perf_counter
from typing import ClassVar, Self

import numpy as np

from paceline import tree as trees
from paceline.controllers.asking import Asking
from paceline.controllers.base import Controller, ControllerContext
from paceline.controllers.batch_gains import batch_gains
from paceline.controllers.chains import Chains
from paceline.controllers.cost import CostModel
from paceline.controllers.promises import Promises
from paceline.controllers.sizing import Sizing
from paceline.sequence import Sequence
from paceline.types import ROOT, Budget, TokenTree, Verdict

# Fewest nodes to ask a drafter for that prunes well: tree expansion costs time too.
_ASK_LEAST = 8

# Share of a draft's cost that one more token of a chain adds, as it does with EAGLE-3.
_LEVEL = 0.1

_NOTHING = Budget(0, 0)


class CostModelController(Controller):
    """Choose the number of nodes per step from c(n), draft cost and calibrated acceptance."""

    name: ClassVar[str] = "cost-model"
    costs: CostModel

    def __init__(
        self,
        costs: CostModel,
        *,
        nodes: int = 24,
        depth: int = 16,
        chain_acceptance: float = 0.6,
        draft_level_seconds: float = 0.0,
    ) -> None:
        """Bind the measured costs.

        Args:
            costs: seconds by rows of a forward.
            nodes: largest draft to ask a drafter for.
            depth: deepest draft to ask for.
            chain_acceptance: prior acceptance probability of a drafted token, for drafts without
                scores, and for tokens after those that were drafted.
            draft_level_seconds: prior cost of one more drafted level.
        """
        self.costs = costs
        self._limit = Budget(nodes, depth)
        self._promises = Promises()
        self._chains = Chains(self._limit, chain_acceptance, draft_level_seconds)
        self._next = chain_acceptance
        self._asking = Asking(costs.time(1))  # hopeful: until drafts have been seen
        self._estimates = True
        self._asked = True
        self._verified = nodes  # of the largest draft of the last step
        self._sizing = Sizing()
        self._choosing = 0.0  # seconds that it took to choose from the last drafts

    @classmethod
    def create(cls, context: ControllerContext) -> Self:
        costs = copy.deepcopy(context.costs())  # refined by this controller alone
        return cls(costs, **context.chosen(cls))

    def budgets(self, sequences: List[Sequence]) -> list[Budget]:
        if not self._estimates:
            return self._chains.budgets(sequences, self.costs, self.beside)
        self._asked = self._asking.now(len(sequences))
        if not self._asked:
            return [_NOTHING] * len(sequences)
        # Twice what was verified last: a draft in good text grows to the limit in two steps.
        nodes = min(self._limit.nodes, max(_ASK_LEAST, 2 * self._verified))
        least = self._least(len(sequences))
        depth, estimate = self._limit.depth, self._promises.estimate
        return [Budget(nodes, depth, estimate(s, least)) for s in sequences]

    def select(self, sequences: List[Sequence], drafts: List[TokenTree]) -> list[TokenTree]:
        begin = perf_counter()
        chosen = self._select(sequences, drafts)
        self._choosing = perf_counter() - begin
        return chosen

    def _select(self, sequences: List[Sequence], drafts: List[TokenTree]) -> list[TokenTree]:
        roots = len(sequences)
        if self._idle_step:
            self._verified = 0
            _, self.rows = self._sizing.choose([float(roots)], roots, self.costs, self.beside)
            return list(drafts)
        found = any(map(len, drafts))
        if found:
            self._estimates = all(
                draft.law is None and (not len(draft) or draft.scores is not None)
                for draft in drafts
            )
        self._promises.note(sequences, drafts)
        if not self._estimates:
            self.rows = 0
            return list(drafts)
        if roots == 1 and not (self.costs.branch or self.costs.fork):
            promise = self._promises.of(sequences[0], drafts[0])
            order = sorted(range(len(promise)), key=promise.__getitem__, reverse=True)
            gains = list(accumulate(map(promise.__getitem__, order), initial=1.0))
            self._verified, self.rows = self._choose(gains, 1)
            return [_part(drafts[0], order[: self._verified])]
        worth = self._promises.worth(sequences, drafts, self.costs) if found else []
        scored = [
            (value, index, node)
            for index, nodes in enumerate(worth)
            for node, value in nodes.items()
        ]
        scored.sort(key=itemgetter(0), reverse=True)  # of equals the first first, all the same
        ranked = [(value, index) for value, index, _ in scored]
        gains = batch_gains(ranked, roots, self.queue)
        count, self.rows = self._choose(gains, roots)
        if not found:
            self._verified = 0
            return list(drafts)
        chosen: list[list[int]] = [[] for _ in drafts]
        for _, index, node in scored[:count]:
            chosen[index].append(node)
        out = [_part(draft, nodes) for draft, nodes in zip(drafts, chosen, strict=True)]
        if count < len(scored) and not all(map(trees.is_chain, out)):
            # A side branch that was cut may not be worth its path any more.
            again = self._promises.worth(sequences, out, self.costs)
            out = [_part(draft, list(nodes)) for draft, nodes in zip(out, again, strict=True)]
        self._verified = max(map(len, out))
        return out

    def _choose(self, gains: list[float], roots: int) -> tuple[int, int]:
        making = self._asking.cost
        return self._sizing.choose(gains, roots, self.costs, self.beside, making)

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        draft_seconds: float,
        forward_seconds: float,
    ) -> None:
        begin = perf_counter()
        if not self._estimates and self._chains.resting:
            return
        idle = self._idle_step
        rows = len(sequences) + (0 if idle else sum(map(len, drafts)))
        size = self.costs.size(max(rows, self.rows))
        same = self._sizing.ran(size)
        steady = not self.beside and (same or not self.costs.switch)
        if idle:
            return  # plain decoding: nothing was seen that could change a choice
        if steady:
            self.costs.observe(size, forward_seconds, len(sequences))
        if not self._estimates:
            self._chains.learn(sequences, drafts, verdicts, draft_seconds / self.costs.pace)
            return
        self._promises.learn(sequences, drafts, verdicts)
        spent = draft_seconds + self._choosing + perf_counter() - begin
        # What is saved was estimated: a machine that is held up takes longer for both.
        self._asking.learn(self._sizing.saved, spent / self.costs.pace, len(sequences))

    def close(self, sequence: Sequence) -> None:
        self._promises.close(sequence)
        self._chains.close(sequence)

    def _least(self, roots: int) -> float:
        # Least acceptance probability of a token worth drafting on after: the next must gain
        # more than its drafting and its row cost.
        plain, one_more = self.costs.span(roots, 1, roots)
        row = one_more - plain
        return (roots * row + _LEVEL * self._asking.cost) / plain / self._next

    @property
    def _idle_step(self) -> bool:
        # The draft gate was closed in this step.
        return self._estimates and not self._asked


def _part(draft: TokenTree, nodes: List[int]) -> TokenTree:
    # Equal scores may split a path: only nodes whose ancestors are among them.
    if len(nodes) == len(draft):
        return draft
    if not nodes or max(nodes) == len(nodes) - 1:
        return trees.head(draft, len(nodes))
    kept = {ROOT}
    for node in sorted(nodes):
        if int(draft.parents[node]) in kept:
            kept.add(node)
    return trees.take(draft, np.array(sorted(kept - {ROOT}), dtype=np.int64))
