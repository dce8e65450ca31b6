"""Top-beta with a score gap (GAD++: Xia et al. 2022, arXiv:2203.16487). Lossy.

A drafted token stands if it is among the target's `beta` best and its log-probability is at most
`gap` below that of the best. Sampled requests (ours; the paper decodes greedily) score tokens by
log p + g with the Gumbel noise g of the position, whose best is the token that plain sampling with
the same seed draws.

Lossless limit: beta = 1 accepts the target's own token alone, and then the text is that of plain
decoding, greedy or sampled. (gap = 0 pardons exact ties at most.)
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from paceline.options import require
from paceline.randomness import Draw, Purpose
from paceline.types import Law, ProbArray
from paceline.verifiers.pardon import Pardoning, Round


class TopGap(Pardoning):
    """Takes drafts of every kind, chains and trees; how they were drawn plays no part."""

    name: ClassVar[str] = "top-gap"

    def __init__(self, beta: int = 5, gap: float = 3.0) -> None:
        """Set how much may pass; the defaults are the paper's.

        Args:
            beta: how many of the target's best tokens may stand, 1 or more.
            gap: largest distance to the best in nats, 0 or more.

        Raises:
            InvalidOption: a parameter is out of range.
        """
        require(beta >= 1, "beta", beta, "1 or more")
        require(gap >= 0, "gap", gap, "0 or more")
        self.beta = beta
        self.gap = gap

    def pardons(self, step: Round, node: int, child: int, depth: int) -> bool:
        """Whether the token is near the top of the target's scores."""
        law, scores = _scores(step, node, depth)
        token = int(step.draft.tokens[child])
        if law.prob(token) == 0:
            return False
        place = token if law.ids is None else int(np.searchsorted(law.ids, token))
        better = (scores > scores[place]).sum() + (scores[:place] == scores[place]).sum()
        return bool(better < self.beta and scores.max() - scores[place] <= self.gap)


def _scores(step: Round, node: int, depth: int) -> tuple[Law, ProbArray]:
    """The law at `node`, and a score per token of its support; the best is the target's own."""
    law = step.target.law(node)
    noise: ProbArray | float = 0.0
    if len(law.probs) == 1:  # greedy, or forced: the softer law shows what came close
        law = step.target.soft(node)
    else:
        draw = Draw(step.target.position + depth, Purpose.NOISE)
        ids = np.arange(law.size) if law.ids is None else law.ids
        noise = -np.log(step.randomness.noise(draw).of(ids))
    with np.errstate(divide="ignore"):
        return law, np.log(law.probs) + noise
