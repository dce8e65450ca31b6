"""Pools of tokens by draft mass, for `acceptance.recursive_distinct` over large vocabularies."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from paceline.exactness.excess import quotient
from paceline.types import IntArray, Law, ProbArray


@dataclass(frozen=True)
class Pools:
    """Tokens of q: the likeliest as singles, the others in pools of similar q.

    `mean` is float64 `[singles + pools]`, the self-weighted mean of a token's draft mass.
    """

    p: ProbArray
    q: ProbArray
    pooled: tuple[_Pool, ...]
    mean: ProbArray

    @classmethod
    def of(cls, p: Law, q: Law, count: int) -> Pools:
        """Build about `count` singles and pools."""
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
        """Return the probability that the next draft is this and fails, `[states, tokens]`.

        Arguments are float64 `[states]`: scale s, next scale, M(s), and mass not yet drafted;
        `gone` is int64 `[states, rejections]`. A token is drafted with probability q / rest, and
        accepted with (p - s q)+ / M(s) or less; it fails only where p < q times the next scale.
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
    # Tokens by ascending p / q (`ratios`), with running sums of p and q, `[k + 1]`.

    ratios: ProbArray
    p: ProbArray
    q: ProbArray

    @classmethod
    def of(cls, p: ProbArray, q: ProbArray) -> _Pool:
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
        none, some = np.searchsorted(self.ratios, scales), np.searchsorted(self.ratios, onward)
        taken = self.p[some] - self.p[none] - scales * (self.q[some] - self.q[none])
        return np.maximum(self.q[some] / rest - taken / left, 0.0)
