"""k-SEQ at sequence level (SpecTr: Sun et al. 2023, arXiv:2310.15141): k independent draws from
q are tried in turn, each accepted with probability min(1, p / (rho q)). rho in [1, k] makes
acceptance and correction add up to p; it is solved at every node for the draws that reached it.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from paceline.core.types import Distribution, SamplingScheme
from paceline.sampling.distributions import residual
from paceline.verifiers.base import drawn_mass
from paceline.verifiers.multi_draft import MultiDraft, Siblings

# Relative error of the equation for rho, which is that of the output distribution.
_TOLERANCE = 1e-14

# Secant steps before halving alone; all but nearly equal distributions take less than ten.
_SECANTS = 24

# Enough to halve the bracket down to neighbouring numbers.
_STEPS = _SECANTS + 60


class KSeq(MultiDraft):
    """Lossless for independent paths, and for trees whose siblings were drawn independently."""

    name: ClassVar[str] = "k-seq"
    requires = "siblings drawn independently (iid trees, merged paths)"
    paper = "SpecTr, Sun et al. 2023, arXiv:2310.15141"
    lossless: ClassVar[bool] = True
    accepts: ClassVar[frozenset[SamplingScheme | None]] = frozenset({"iid", "paths"})

    def _decide(self, at: Siblings) -> int | Distribution:
        rho = scale(at.p, at.q, len(at.children))
        for sibling, (child, token) in enumerate(zip(at.children, at.tokens, strict=True)):
            mass = drawn_mass(self, at.q, at.draft, child)
            if at.coin(min(1.0, at.p.prob(token) / (rho * mass)), sibling):
                return child
        # A token had min(q, p / rho) in every try, rho times in all; (p - rho q)+ is left of p.
        return residual(at.p, at.q, weight=1 / rho)


def scale(p: Distribution, q: Distribution, k: int) -> float:
    """Return the factor rho for `k` draws.

    With b(rho) = sum min(q, p / rho), the acceptance probability of one draw, rho solves
    1 - (1 - b)^k = rho b; divided by b: 1 + (1 - b) + ... + (1 - b)^(k - 1) = rho, which loses no
    digits at small b. Bracketed secant steps from [1, k], with halving as fallback.
    """
    mine, theirs = q.probs, p.at(q.ids)
    least = np.empty_like(mine)
    low, rho, high = 1.0, 1.0, float(k)
    slope, before, gap_before = -1.0, math.nan, math.nan
    for step in range(_STEPS):
        np.multiply(mine, rho, out=least)
        chance = float(np.minimum(theirs, least, out=least).sum()) / rho
        gap = math.fsum((1 - chance) ** tries for tries in range(k)) - rho
        if abs(gap) <= _TOLERANCE * rho:
            break
        low, high = (rho, high) if gap > 0 else (low, rho)
        if step and rho != before:
            slope = (gap - gap_before) / (rho - before)
        before, gap_before = rho, gap
        if slope < 0 and step < _SECANTS:
            rho -= gap / slope
        if not low < rho < high or step >= _SECANTS:
            rho = (low + high) / 2
    return rho
