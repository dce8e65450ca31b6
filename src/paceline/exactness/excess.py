"""Residual mass of (p - s q)+ by scale s: the acceptance of further drafts telescopes in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.types import Law, ProbArray


@dataclass(frozen=True)
class Excess:
    """Mass of (p - s q)+ as a function of s, in O(log V) after one sort.

    `ratios` are q / p of the target's tokens, ascending; `p` and `q` running sums, `[k + 1]`.
    """

    ratios: ProbArray
    p: ProbArray
    q: ProbArray

    @classmethod
    def of(cls, p: Law, q: Law) -> Excess:
        mine, theirs = p.probs, q.at(p.ids)
        mine, theirs = mine[mine > 0], theirs[mine > 0]
        ratios = quotient(theirs, mine)
        order = np.argsort(ratios)
        zero = np.zeros(1)
        return cls(
            ratios[order],
            np.concatenate([zero, np.cumsum(mine[order])]),
            np.concatenate([zero, np.cumsum(theirs[order])]),
        )

    def mass(self, scales: ProbArray) -> ProbArray:
        with np.errstate(divide="ignore"):
            count = np.searchsorted(self.ratios, 1.0 / scales)
        return np.maximum(self.p[count] - scales * self.q[count], 0.0)


def quotient(first: ProbArray, second: ProbArray) -> ProbArray:
    """Return ratios of masses; infinite on overflow."""
    with np.errstate(over="ignore"):
        return first / second
