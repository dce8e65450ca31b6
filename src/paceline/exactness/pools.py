"""Tokens pooled by their draft mass, for histories of rejected tokens that are too many to tell
apart (`acceptance.recursive_distinct`)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from paceline.exactness.excess import quotient
from paceline.types import IntArray, Law, ProbArray


@dataclass(frozen=True)
class Pools:
    """The tokens of q, the likeliest each for itself and the others pooled by q.

    Attributes:
        p: float64 `[singles]`, target mass of the tokens that stand for themselves.
        q: float64 `[singles]`, their draft mass.
        pooled: per pool, its tokens by ascending p / q.
        mean: float64 `[singles + pools]`, draft mass of a token, the mean weighted by itself.
    """

    p: ProbArray
    q: ProbArray
    pooled: tuple[_Pool, ...]
    mean: ProbArray

    @classmethod
    def of(cls, p: Law, q: Law, count: int) -> Pools:
        """At most about `count` pools and tokens that stand for themselves."""
        order = np.argsort(-q.probs, kind="stable")
        order = order[: int(np.count_nonzero(q.probs))]
        mine, theirs = p.at(q.ids)[order], q.probs[order]
        if len(order) <= count:
            return cls(mine, theirs, (), theirs)
        singles = count - count // 4
        # Pools of about equal mass, down to single tokens.
        mass = np.cumsum(theirs[singles:])
        places = np.searchsorted(mass, mass[-1] * np.arange(1, count - singles) / (count - singles))
        borders = [singles, *(singles + np.unique(places + 1)), len(order)]
        spans = [(a, b) for a, b in pairwise(borders) if a < b]
        pooled = tuple(_Pool.of(mine[a:b], theirs[a:b]) for a, b in spans)
        means = [float((theirs[a:b] ** 2).sum() / theirs[a:b].sum()) for a, b in spans]
        return cls(
            mine[:singles], theirs[:singles], pooled, np.concatenate([theirs[:singles], means])
        )

    def rejected(
        self, scales: ProbArray, onward: ProbArray, left: ProbArray, rest: ProbArray, gone: IntArray
    ) -> ProbArray:
        """float64 `[states, singles + pools]`: probability that the next draft is this and fails.

        A token is drafted with probability q / rest and accepted with (p - s q)+ / M(s), or with
        less; it fails at all only where p is below q times the next scale.

        Args:
            scales: float64 `[states]`, s.
            onward: float64 `[states]`, the next scale.
            left: float64 `[states]`, M(s).
            rest: float64 `[states]`, draft mass of the tokens not yet drafted.
            gone: int64 `[states, rejections]`, what has been rejected.
        """
        s, mass, remaining = scales[:, None], left[:, None], rest[:, None]
        taken = np.maximum(self.p - s * self.q, 0.0) / mass
        singles = np.maximum(self.q / remaining - taken, 0.0)
        pooled = (pool.rejected(scales, onward, left, rest) for pool in self.pooled)
        out: ProbArray = np.column_stack([singles, *pooled])
        for rejection in gone.T:
            state = np.flatnonzero(rejection < len(self.q))
            out[state, rejection[state]] = 0.0
        return out


@dataclass(frozen=True)
class _Pool:
    """Tokens by ascending p / q, with running sums.

    Attributes:
        ratios: float64 `[k]`, p / q.
        p: float64 `[k + 1]`, target mass of the first tokens.
        q: float64 `[k + 1]`, their draft mass.
    """

    ratios: ProbArray
    p: ProbArray
    q: ProbArray

    @classmethod
    def of(cls, p: ProbArray, q: ProbArray) -> _Pool:
        """Sort and sum."""
        ratios = quotient(p, q)
        order = np.argsort(ratios)
        zero = np.zeros(1)
        return cls(
            ratios[order],
            np.concatenate([zero, np.cumsum(p[order])]),
            np.concatenate([zero, np.cumsum(q[order])]),
        )

    def rejected(
        self, scales: ProbArray, onward: ProbArray, left: ProbArray, rest: ProbArray
    ) -> ProbArray:
        """As `Pools.rejected`, summed over the pool: float64 `[states]`."""
        none, some = np.searchsorted(self.ratios, scales), np.searchsorted(self.ratios, onward)
        taken = self.p[some] - self.p[none] - scales * (self.q[some] - self.q[none])
        return np.maximum(self.q[some] / rest - taken / left, 0.0)
