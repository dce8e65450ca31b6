"""Top-beta with a score gap (GAD++: Xia et al. 2022, arXiv:2203.16487), lossy: accept a token among
the target's `beta` best with a log-probability at most `gap` below the best. Sampled requests
(ours) score by log p + g with the position's Gumbel noise g. Lossless limit: beta = 1.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from paceline.core.options import require
from paceline.core.types import Distribution, ProbArray
from paceline.methods.relaxed_acceptance import RelaxedAcceptance, Round
from paceline.sampling.randomness import Draw, Purpose


class TopGap(RelaxedAcceptance):
    """Accept drafts of every kind, chains and trees, however drawn."""

    name: ClassVar[str] = "top-gap"
    guarantee = "lossy: accepts near-best tokens"
    requires = "any draft"
    paper = "after GAD++, Xia et al. 2022, arXiv:2203.16487"
    proof = "paceline.methods.proof:TOP_GAP"

    def __init__(self, beta: int = 5, gap: float = 3.0) -> None:
        """Set the limits: accepted ranks, and nats below the best. Defaults are the paper's.

        Raises:
            InvalidOption: a parameter is out of range.
        """
        require(beta >= 1, "beta", beta, "1 or more")
        require(gap >= 0, "gap", gap, "0 or more")
        self.beta = beta
        self.gap = gap

    def relaxes(self, step: Round, node: int, child: int, depth: int) -> bool:
        distribution, scores = _scores(step, node, depth)
        token = int(step.draft.tokens[child])
        if distribution.prob(token) == 0:
            return False
        place = token if distribution.ids is None else int(np.searchsorted(distribution.ids, token))
        better = (scores > scores[place]).sum() + (scores[:place] == scores[place]).sum()
        return bool(better < self.beta and scores.max() - scores[place] <= self.gap)


def _scores(step: Round, node: int, depth: int) -> tuple[Distribution, ProbArray]:
    # The best score is the target's own token.
    distribution = step.target.distribution(node)
    noise: ProbArray | float = 0.0
    if len(distribution.probs) == 1:  # greedy or forced: temperature 1 shows what came close
        distribution = step.target.soft(node)
    else:
        draw = Draw(step.target.position + depth, Purpose.NOISE)
        ids = np.arange(distribution.size) if distribution.ids is None else distribution.ids
        noise = -np.log(step.randomness.noise(draw).of(ids))
    with np.errstate(divide="ignore"):
        return distribution, np.log(distribution.probs) + noise
