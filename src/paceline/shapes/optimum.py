"""The nodes that commit most tokens per second on the hardware at hand.

Verifying nodes S of a batch of B drafts commits B + (sum of their scores) tokens in expected value,
and takes the time of a forward over B + |S| rows plus, in layout "exact", the time of every path
beyond a draft's first, and a fixed time if there is any. PPD (Chen et al. 2024, arXiv:2405.18628)
weighs tokens against measured time in the same way, for static trees. Here the best set is found
for any tree and any cost, steps of padding included.

A ratio is maximised by maximising differences (Dinkelbach 1967, "On nonlinear fractional
programming"): at a rate of r tokens per second, the set of greatest tokens - r * seconds has a rate
of at least r, and of exactly r only if r is the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.controllers.cost import CostModel
from paceline.shapes.batch import Batch, Candidates
from paceline.shapes.static import StaticShape, chances, from_rank_accuracies, layout
from paceline.types import ROOT, IntArray, ProbArray

_CLOSER = 1e-12
"""Relative gain in rate that is no gain but rounding."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What to verify of a batch.

    Attributes:
        nodes: per draft, int64 node indices, ascending and closed under parents.
        tokens: how many are committed in expected value, those of the roots included.
        seconds: how long the forward takes.
    """

    nodes: tuple[IntArray, ...]
    tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        """Expected tokens per second."""
        return self.tokens / self.seconds


def optimum(drafts: Sequence[Candidates], seconds: ProbArray, fork: float = 0.0) -> Choice:
    """The nodes of a batch that maximise expected tokens per second.

    Args:
        drafts: one per sequence, at least one; empty ones count as roots.
        seconds: float64 `[m]`, time of a forward over 0, 1, ..., m - 1 nodes beside the roots; no
            more nodes are verified. For a cost model and a batch of B drafts with n nodes it is
            `costs.times(B + np.arange(n + 1))`, plus whatever a change of size costs.
        fork: seconds that any branch costs, however many there are (`costs.fork`).
    """
    batch = Batch(drafts, len(seconds) - 1, fork)
    nothing = tuple(np.zeros(0, dtype=np.int64) for _ in drafts)
    best = Choice(nothing, float(len(drafts)), float(seconds[0]))
    while True:
        priced = batch.priced(best.rate)
        most = int(np.argmax(priced.worth - best.rate * seconds[: len(priced.worth)]))
        found = _choice(drafts, priced.nodes(most), seconds, fork)
        if not found.rate > best.rate * (1 + _CLOSER):
            return best
        best = found


def best_shape(
    accuracies: ProbArray, nodes: int, depth: int, costs: CostModel, context: int = 0
) -> StaticShape:
    """The static shape that is fastest for one sequence.

    Args:
        accuracies: as in `paceline.shapes.static.from_rank_accuracies`.
        nodes: how many of the likeliest nodes to choose from.
        depth: greatest depth.
        costs: what forwards cost.
        context: tokens before the draft, which every path attends to.
    """
    shape = from_rank_accuracies(accuracies, nodes, depth)
    draft = Candidates(layout(shape).parents, chances(shape, accuracies), costs.branch * context)
    choice = optimum([draft], costs.times(1 + np.arange(len(shape) + 1)), costs.fork)
    return tuple(shape[node] for node in choice.nodes[0].tolist())


def _choice(
    drafts: Sequence[Candidates], nodes: tuple[IntArray, ...], seconds: ProbArray, fork: float
) -> Choice:
    """What nodes promise and cost."""
    tokens, time = float(len(drafts)), float(seconds[sum(map(len, nodes))])
    branches = 0
    for draft, part in zip(drafts, nodes, strict=True):
        tokens += float(draft.scores[part].sum())
        leaves = len(part) - len(set(draft.parents[part].tolist()) - {ROOT})
        branches += max(0, leaves - 1)
        time += draft.path_seconds * max(0, leaves - 1)
    return Choice(nodes, tokens, time + fork * (branches > 0))
