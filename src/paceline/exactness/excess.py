"""The residual that most rules leave after a rejection, by its scale.

It is of the form norm((p - s q)+) for some scale s. So one function of s says all: the mass of
(p - s q)+, in which the acceptance of every further draft telescopes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.types import Law, ProbArray


@dataclass(frozen=True)
class Excess:
    """The mass of (p - s q)+ as a function of the scale s, in O(log V) after one sort.

    Attributes:
        ratios: float64 `[k]`, q / p of the target's tokens, ascending.
        p: float64 `[k + 1]`, target mass of the first tokens.
        q: float64 `[k + 1]`, their draft mass.
    """

    ratios: ProbArray
    p: ProbArray
    q: ProbArray

    @classmethod
    def of(cls, p: Law, q: Law) -> Excess:
        """Sort the tokens of `p`."""
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
        """float64 of the shape of `scales`, which are not negative."""
        with np.errstate(divide="ignore"):
            count = np.searchsorted(self.ratios, 1.0 / scales)
        return np.maximum(self.p[count] - scales * self.q[count], 0.0)


def quotient(first: ProbArray, second: ProbArray) -> ProbArray:
    """Ratios of masses; infinite where they are too large for a float."""
    with np.errstate(over="ignore"):
        return first / second
