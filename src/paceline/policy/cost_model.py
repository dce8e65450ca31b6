"""Cost-model controller: verify the nodes that maximise committed tokens per second. Verifying
nodes S beside B roots commits B + sum(S) tokens in expectation and costs time(B + |S|); the
most probable nodes of the whole batch are taken as far as they pay. Acceptance
probabilities are calibrated per sequence from past steps, and only deterministic drafts are
pruned: lossless.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import accumulate
from math import inf
from operator import itemgetter
from time import perf_counter
from typing import ClassVar, Self

import numpy as np

from paceline.core import tree as trees
from paceline.core.options import within
from paceline.core.types import ROOT, Budget, TokenTree
from paceline.policy.acceptance import AcceptanceEstimates, ChainReach
from paceline.policy.constants import (
    CHAIN_RETRY,
    DRAFT_RETRY,
    DRAFT_RETRY_SELDOM,
    HOPE,
    LEAST_NODES,
    LEVEL_SHARE,
    LEVEL_SMOOTHING,
    PLAIN_EVERY,
    PLAIN_FIRST,
    UNSHARED_TOKEN,
)
from paceline.policy.controller import Controller, ControllerContext
from paceline.policy.cost import CostModel
from paceline.policy.draft_gate import DraftCost, DraftGate
from paceline.sampling.generation import Generation, VerifiedDraft

# Factor by which a draft must beat plain decoding: costs are known no better than that.
MARGIN = 1.02

# Decay per step of the long-run rate.
_MEMORY = 0.98


def best_depths(
    reach: Sequence[Sequence[float]],
    costs: CostModel,
    level_seconds: float = 0.0,
    beside: int = 0,
) -> list[int]:
    """Return depths of chains, one per sequence, that commit most tokens per second together.

    A batch's draft takes as long as its deepest chain: for every such depth, the most
    probable tokens are taken as far as they pay. Lists, not arrays: few tokens, at every step.

    Args:
        reach: per sequence, acceptance probabilities down to each depth, never rising.
        costs: forward costs.
        level_seconds: cost of a drafted level.
        beside: rows of prefill in the forward. With them a chain must gain more than its own
            time would commit in a plain step.
    """
    roots = len(reach)
    nodes = [
        (probability, level, owner)
        for owner, probabilities in enumerate(reach)
        for level, probability in enumerate(probabilities, 1)
    ]
    nodes.sort(key=itemgetter(0), reverse=True)  # of equals in one chain, parents first
    seconds = costs.span(roots + beside, len(nodes), roots)
    rate = MARGIN * roots / costs.time(roots, roots)
    best = roots - rate * seconds[0] if beside else roots / seconds[0]
    deepest = count = 0
    for depth in range(1, max(map(len, reach)) + 1):
        drafting = depth * level_seconds
        gained, taken = 0.0, 0
        for probability, level, _ in nodes:
            if level > depth:
                continue
            gained += probability
            taken += 1
            spent = seconds[taken] + drafting
            tokens = roots + gained
            value = tokens - rate * spent if beside else tokens / (spent * MARGIN)
            if value > best:
                best, deepest, count = value, depth, taken
    depths = [0] * roots
    for _, level, owner in nodes:
        if level <= deepest and count:
            depths[owner] += 1
            count -= 1
    return depths


_NOTHING = Budget(0, 0)


class ChainSizer:
    """Size chains by the acceptance of earlier steps and the cost of a drafted level."""

    def __init__(self, limit: Budget, acceptance: float, level_seconds: float) -> None:
        """Start with priors: a token's acceptance probability, and the cost of one more level."""
        self._limit = limit
        self._reach = ChainReach(limit.depth, acceptance)
        self._level_seconds = level_seconds
        self._gate = DraftGate.every(CHAIN_RETRY)
        self._cost = DraftCost()

    def budgets(
        self, sequences: Sequence[Generation], costs: CostModel, beside: int
    ) -> list[Budget]:
        """Return the depths that commit most tokens per second together (`best_depths`)."""
        self._reach.step += 1
        depths = self._best(sequences, costs, beside)
        pays = any(depths)
        if not self._gate.open(0.0 if pays else inf):
            return [_NOTHING] * len(sequences)
        if pays:
            return [Budget(depth, depth) for depth in depths]
        # What does not pay now may pay later in the text.
        return [Budget(1, 1)] * len(sequences)

    def learn(self, step: Sequence[VerifiedDraft], draft_seconds: float, costs: CostModel) -> None:
        """Update acceptance and level cost after a step; `draft_seconds` is its drafting time."""
        deepest = right = 0
        for sequence, draft, verdict, _ in step:
            if len(draft):
                depth = trees.deepest(draft)
                deepest = max(deepest, depth)
                right += len(verdict.path)
                self._reach.learn(sequence.id, depth, len(verdict.path))
        if deepest:
            roots = len(step)
            seconds = costs.span(roots, sum(len(each.draft) for each in step), roots)
            took = self._cost.add(draft_seconds) + seconds[-1]
            self._gate.lose(took / seconds[0] - 1 - right / roots)
            self._level_seconds += LEVEL_SMOOTHING * (draft_seconds / deepest - self._level_seconds)

    def close(self, sequence: Generation) -> None:
        self._reach.close(sequence.id)

    def _best(self, sequences: Sequence[Generation], costs: CostModel, beside: int) -> list[int]:
        reach = []
        for sequence in sequences:
            allowed = sequence.speculation.cap(self._limit).depth
            reach.append(self._reach.reach(sequence.id, allowed))
        return best_depths(reach, costs, self._level_seconds, beside)


def batch_gains(ranked: Sequence[tuple[float, int]], roots: int, queue: int) -> list[float]:
    """Return the worth of a step with the first 0, 1, ... of the ranked nodes, in tokens.

    While requests wait, all tokens count alike. Otherwise a batch lasts as long as its slowest
    sequence: tokens count in full only as far as all sequences gain them.

    Args:
        ranked: acceptance probability and sequence index of each node, best first.
        roots: sequences in the batch.
        queue: requests that wait.
    """
    if roots == 1 or queue:
        return list(accumulate((value for value, _ in ranked), initial=float(roots)))
    own = [0.0] * roots
    total, out = 0.0, [float(roots)]
    for value, sequence in ranked:
        own[sequence] += value
        total += value
        shared = roots * min(own)
        out.append(roots + shared + UNSHARED_TOKEN * (total - shared))
    return out


class Sizing:
    """Number of nodes to verify, step by step: n maximises g(n) - rate * t(B + n), with g the
    expected committed tokens, t the seconds, B the roots and `rate` the long-run tokens per
    second, or the step's own if higher.
    """

    def __init__(self) -> None:
        self._earned = self._paid = 1.0  # of late, in steps of plain decoding
        # Seconds that the best number of the last nodes saves: what plain decoding would need
        # for the tokens that they gain, less their own time.
        self.saved = 0.0

    def choose(
        self,
        gains: Sequence[float],
        roots: int,
        costs: CostModel,
        beside: int = 0,
        making: float = 0.0,
    ) -> int:
        """Return the number of ranked nodes to verify beside `roots` roots.

        Args:
            gains: tokens of a step with 0, 1, ... of the ranked nodes (`batch_gains`).
            roots: sequences in the batch.
            costs: forward costs.
            beside: rows of prefill in the forward. With them a node must gain more than its own
                time would commit in a plain step.
            making: seconds of this step that go into drafts.
        """
        most = len(gains) - 1
        seconds = costs.span(roots, most, roots)
        plain = seconds[0]
        speed_up = max(self._earned / self._paid, MARGIN)
        own = max([gain / spent for gain, spent in zip(gains, seconds, strict=True)])
        best = _best(gains, max(speed_up * roots / plain, own), seconds)
        earned = gains[best] / roots
        self.saved = max(earned * plain - seconds[best], 0.0)
        if beside:
            return _best(gains, MARGIN * roots / plain, costs.span(roots + beside, most))
        self._earned = _MEMORY * self._earned + earned
        self._paid = _MEMORY * self._paid + (seconds[best] + making) / plain
        return best


def _best(gains: Sequence[float], rate: float, seconds: Sequence[float]) -> int:
    # Most tokens beyond what the time is worth.
    left = [gain - rate * spent for gain, spent in zip(gains, seconds, strict=True)]
    return left.index(max(left))


class _Worth:
    # Whether to draft, and how much, in batches of about one size.

    def __init__(self, hope: float) -> None:
        self.gate = DraftGate(hope, HOPE, DRAFT_RETRY, DRAFT_RETRY_SELDOM)
        self.cost = DraftCost()  # of the drafts of a step
        self.sizing = Sizing()
        self.drafted = 0  # steps with drafts since one without
        self.most = PLAIN_FIRST  # of those; doubles

    def step(self, drafted: bool) -> None:
        """Count a step with or without drafts."""
        if not drafted and self.drafted >= self.most:
            self.most = min(2 * self.most, PLAIN_EVERY)
        self.drafted = self.drafted + 1 if drafted else 0


class CostModelController(Controller):
    """Choose the number of nodes per step from c(n), draft cost and calibrated acceptance."""

    name: ClassVar[str] = "cost-model"
    requires = "c(n), measured at load"
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
        within("chain_acceptance", chain_acceptance, 0, 1)
        within("draft_level_seconds", draft_level_seconds, 0, 1e3)
        self.costs = costs
        self._limit = Budget(nodes, depth)
        self._acceptance = AcceptanceEstimates()
        self._chains = ChainSizer(self._limit, chain_acceptance, draft_level_seconds)
        self._next = chain_acceptance
        self._worths: dict[int, _Worth] = {}  # by size of the batch, in powers of two
        self._worth = self._worth_of(1)  # in this step
        self._scored = True
        self._asked = True
        self._verified = nodes  # of the largest draft of the last step
        self._choosing = 0.0  # seconds that it took to choose from the last drafts

    @classmethod
    def create(cls, context: ControllerContext) -> Self:
        costs = copy.deepcopy(context.costs())  # refined by this controller alone
        return cls(costs, **context.chosen(cls))

    def budgets(self, sequences: Sequence[Generation]) -> list[Budget]:
        if not self._scored:
            return self._chains.budgets(sequences, self.costs, self.beside)
        worth = self._worth = self._worth_of(len(sequences))
        opened = worth.gate.open(worth.cost.value)
        # What rows cost now is seen only beside steps without any.
        self._asked = opened and worth.drafted < worth.most
        if not self._asked:
            return [_NOTHING] * len(sequences)
        # Twice what was verified last: a draft in good text grows to the limit in two steps.
        nodes = min(self._limit.nodes, max(LEAST_NODES, 2 * self._verified))
        roots = len(sequences)
        plain, one_more = self.costs.span(roots, 1, roots)
        row = (one_more - plain) / plain
        least = self._least(roots * row, plain)
        depth, score = self._limit.depth, self._acceptance.score
        return [Budget(nodes, depth, score(s, least), row) for s in sequences]

    def select(
        self, sequences: Sequence[Generation], drafts: Sequence[TokenTree]
    ) -> list[TokenTree]:
        begin = perf_counter()
        chosen = self._select(sequences, drafts)
        self._choosing = perf_counter() - begin
        return chosen

    def _select(
        self, sequences: Sequence[Generation], drafts: Sequence[TokenTree]
    ) -> list[TokenTree]:
        roots = len(sequences)
        if self._idle_step:
            self._verified = 0
            self._worth.sizing.choose([float(roots)], roots, self.costs, self.beside)
            return list(drafts)
        found = any(map(len, drafts))
        if found:
            self._scored = all(
                draft.sampling is None and (not len(draft) or draft.scores is not None)
                for draft in drafts
            )
        self._acceptance.note(sequences, drafts)
        if not self._scored:
            return list(drafts)
        scored = [
            (value, index, node)
            for index, nodes in enumerate(map(self._acceptance.of, sequences, drafts))
            for node, value in enumerate(nodes)
        ]
        scored.sort(key=itemgetter(0), reverse=True)  # of equals the first first, all the same
        ranked = [(value, index) for value, index, _ in scored]
        gains = batch_gains(ranked, roots, self.queue)
        count = self._choose(gains, roots)
        if not found:
            self._verified = 0
            return list(drafts)
        chosen: list[list[int]] = [[] for _ in drafts]
        for _, index, node in scored[:count]:
            chosen[index].append(node)
        out = [_part(draft, nodes) for draft, nodes in zip(drafts, chosen, strict=True)]
        self._verified = max(map(len, out))
        return out

    def _choose(self, gains: list[float], roots: int) -> int:
        worth = self._worth
        return worth.sizing.choose(gains, roots, self.costs, self.beside, worth.cost.value)

    def _worth_of(self, roots: int) -> _Worth:
        size = (roots - 1).bit_length()
        if size not in self._worths:
            # Alone hopeful, until drafts have been seen; in a batch they must pay from the start.
            self._worths[size] = _Worth(0.0 if size else self.costs.time(1))
        return self._worths[size]

    def observe(
        self, step: Sequence[VerifiedDraft], draft_seconds: float, forward_seconds: float
    ) -> None:
        begin = perf_counter()
        worth, roots, drafted = self._worth, len(step), sum(len(each.draft) for each in step)
        if not self.beside:
            self.costs.observe(roots + drafted, forward_seconds, roots)
        worth.step(drafted > 0)
        if self._idle_step:
            return  # plain decoding
        if not self._scored:
            spent = draft_seconds / self.costs.pace
            self._chains.learn(step, spent, self.costs)
            return
        self._acceptance.learn(step)
        spent = draft_seconds + self._choosing + perf_counter() - begin
        # What is saved was estimated: a machine that is held up takes longer for both.
        counted = worth.cost.add(spent / self.costs.pace)
        # Drafts stand for all steps since the last ones, as far as so few can.
        saved = worth.sizing.saved
        worth.gate.learn(saved, min(worth.gate.steps * roots, DRAFT_RETRY_SELDOM))
        worth.gate.retry(saved > worth.cost.value, roots)
        plain = self.costs.time(roots, roots)
        worth.gate.lose((counted - saved) / plain)

    def close(self, sequence: Generation) -> None:
        self._acceptance.close(sequence)
        self._chains.close(sequence)

    def _least(self, row: float, plain: float) -> float:
        # Least acceptance probability of a token worth drafting on after: the next must gain
        # more than its drafting and its row cost.
        return (row + LEVEL_SHARE * self._worth.cost.value / plain) / self._next

    @property
    def _idle_step(self) -> bool:
        # The draft gate was closed in this step.
        return self._scored and not self._asked


def _part(draft: TokenTree, nodes: Sequence[int]) -> TokenTree:
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
