"""The most that any verifier can accept of n drafted tokens (Hu et al. 2025, "Towards Optimal
Multi-draft Speculative Decoding", arXiv:2502.18779, sections 3 and 4).

A lossless rule couples the token that it emits, of law p, with the tuple of drafts. It accepts when
the token is one of them, so over all couplings the best acceptance is a transport problem, whose
dual is

    1 + min over sets H of tokens of P(H) - Q(H),

with P(H) the target's mass on H and Q(H) the probability that all drafts lie in H. For the laws
below the minimum is attained by a prefix of the tokens sorted by q / p, the largest first, so one
scan over prefixes finds it. Tokens that q never draws are in no such H.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from paceline.errors import InvalidOption
from paceline.law import AGREE, without
from paceline.sampling import top_k_ids
from paceline.types import IntArray, Law, ProbArray

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
"""Gauss-Legendre rule of one panel of the time axis."""

_HORIZON = 80.0
"""Expected late arrivals after which the integrand is below rounding, however many are awaited."""

_SMALL = 0.1
"""Most expected arrivals of a token, over all times, for its odds to be taken from a series."""

_TERMS = 10
"""Terms of that series."""

_EXPM1 = np.array([0.0, *(1 / math.factorial(i) for i in range(1, _TERMS + 1))])
"""Coefficients of exp(x) - 1."""

_PARTS = 64
"""Gaps between the prefixes that a search for the best one starts with."""


def best_iid(p: Law, q: Law, drafts: int) -> float:
    """The most acceptance possible with independent drafts: Q(H) = q(H)^n.

    Args:
        p: the target's law.
        q: the draft law.
        drafts: n, at least one.

    Raises:
        InvalidOption: there is no draft.
    """
    _check(drafts)
    scan = _Scan.of(p, q)
    # 1 - q(H)^n without cancellation where q(H) is close to one.
    with np.errstate(divide="ignore"):
        misses = -np.expm1(drafts * np.log1p(-np.minimum(scan.outside, 1.0)))
    return scan.optimum(misses)


def best_distinct(p: Law, q: Law, drafts: int) -> float:
    """The most acceptance possible with drafts drawn one after another without replacement.

    Drawing without replacement is a race: token x arrives at an exponential time of rate q(x), and
    the drafts are the first n arrivals. Some draft lies outside H if and only if the first arrival
    outside H has fewer than n arrivals of H before it, so

        1 - Q(H) = (1 - q(H)) * integral over t > 0 of P(H has fewer than n arrivals by time t,
                                                         and no other token has any).

    Given t arrivals are independent, and the probability is an elementary symmetric polynomial of
    expm1(q(x) t), which running sums give for all prefixes at once. The integrand is smooth on
    every time scale, so a Gauss rule on panels that double in length is exact to about 1e-13.

    As in drafting, n is lowered where so few tokens hold all the mass of q. Tokens so unlikely
    that they change the result by less than 1e-12 all together are left out of H.

    Args, raises: as for `best_iid`.
    """
    _check(drafts)
    ascending = np.sort(q.probs)
    while drafts > 1 and ascending[: 1 - drafts].sum() <= AGREE:
        drafts -= 1
    if drafts == 1:
        return best_iid(p, q, 1)
    likely = AGREE * ascending[: 1 - drafts].sum() / drafts
    scan = _Scan.of(p, q, dropped=likely)
    return scan.search(_Race(scan.q, scan.outside, drafts).misses)


def best_top_and_one(p: Law, q: Law, drafts: int) -> float:
    """The most acceptance possible when n - 1 drafts are the likeliest tokens of q and the last is
    drawn from the rest of q; verifier "top-and-one" attains it.

    The likeliest tokens are always among the drafts, so their target mass is accepted; of the rest,
    min(p, q') where q' is what was drawn from.

    Args, raises: as for `best_iid`.
    """
    _check(drafts)
    sure, rest = 0.0, q
    for index in top_k_ids(q.probs, min(drafts, len(q.probs)))[: drafts - 1].tolist():
        left = without(rest, q.token(index))
        if left is None:  # as in drafting: something must be left to draw from
            break
        sure, rest = sure + p.prob(q.token(index)), left
    return sure + overlap(p, rest)


def best_fixed(p: Law, q: Law, drafts: int) -> float:
    """The most acceptance possible when the drafts are the n likeliest tokens of q, drawn from
    nothing: the target's mass on them, which sample-and-match attains.

    Args, raises: as for `best_iid`.
    """
    _check(drafts)
    likeliest = top_k_ids(q.probs, min(drafts, int(np.count_nonzero(q.probs))))
    return float(p.at(np.sort(likeliest if q.ids is None else q.ids[likeliest])).sum())


def overlap(p: Law, q: Law) -> float:
    """Sum of min(p, q) over tokens: one less their total variation."""
    return float(np.minimum(p.probs, q.at(p.ids)).sum())


def _check(drafts: int) -> None:
    if drafts < 1:
        raise InvalidOption(f"the number of drafts must be 1 or more, not {drafts}")


@dataclass(frozen=True)
class _Scan:
    """Tokens that q draws, sorted by q / p, the largest first.

    Attributes:
        inside: float64 `[k + 1]`, target mass of each prefix, the empty one included.
        outside: float64 `[k + 1]`, draft mass beyond each prefix.
        q: float64 `[k]`, draft mass of each token.
    """

    inside: ProbArray
    outside: ProbArray
    q: ProbArray

    @classmethod
    def of(cls, p: Law, q: Law, dropped: float = 0.0) -> _Scan:
        """Sort, leaving out the least likely tokens of `q` that add up to at most `dropped`."""
        ascending = np.argsort(q.probs)
        first = int(np.searchsorted(np.cumsum(q.probs[ascending]), dropped, side="right"))
        kept = ascending[first:]
        mine, theirs = q.probs[kept], p.at(q.ids)[kept]
        with np.errstate(over="ignore"):
            order = np.argsort(theirs / mine)
        mine, theirs = mine[order], theirs[order]
        inside = np.concatenate([[0.0], np.cumsum(theirs)])
        beyond = float(q.probs[ascending[:first]].sum())
        outside = np.concatenate([np.cumsum(mine[::-1])[::-1], [0.0]]) + beyond
        return cls(inside, outside, mine)

    def optimum(self, misses: ProbArray) -> float:
        """The dual, from the probability per prefix that some draft lies outside it."""
        return min(1.0, float((self.inside + misses).min()))

    def search(self, misses: Callable[[IntArray], ProbArray]) -> float:
        """The dual to within 1e-12, where `misses` is costly and wanted for few prefixes.

        From one prefix to the next `inside` grows and `misses` shrinks, so their sum between two
        known prefixes is at least `inside` at the shorter and `misses` at the longer. Gaps in which
        that is no less than the best sum known are left alone, the others are divided.
        """
        ends = np.unique(np.linspace(0, len(self.q), _PARTS + 1).astype(np.int64))
        known = dict(zip(ends.tolist(), misses(ends).tolist(), strict=True))
        gaps = list(pairwise(ends.tolist()))
        best = 1.0
        while gaps:
            best = min(best, *(float(self.inside[k]) + known[k] for gap in gaps for k in gap))
            gaps = [(a, b) for a, b in gaps if b - a > 1]
            gaps = [(a, b) for a, b in gaps if self.inside[a] + known[b] < best - AGREE]
            points = [np.unique(np.linspace(a, b, 9).astype(np.int64)).tolist() for a, b in gaps]
            fresh = np.array([k for each in points for k in each[1:-1]], dtype=np.int64)
            known.update(zip(fresh.tolist(), misses(fresh).tolist(), strict=True))
            gaps = [gap for each in points for gap in pairwise(each)]
        return best


class _Race:
    """Arrivals of tokens at exponential times whose rates are their draft mass.

    Tokens are of three kinds. The n - 1 likeliest, the heads, are kept apart from the others
    because their weights would overflow at the late times at which the others arrive. The big ones
    enter running sums one by one. The small ones, nearly all of a vocabulary, have odds that a few
    terms of a series give, so they enter through running sums of powers of q.
    """

    def __init__(self, q: ProbArray, outside: ProbArray, n: int) -> None:
        """Prepare for prefixes of `q`.

        Args:
            q: float64 `[k]`, rates.
            outside: float64 `[k + 1]`, total rate of tokens beyond each prefix.
            n: arrivals awaited.
        """
        self._n, self._outside = n, outside
        self._heads = np.sort(top_k_ids(q, n - 1))
        self._head_rates = q[self._heads]
        rate = float(np.delete(q, self._heads).sum() + outside[-1])
        last = math.ceil(math.log2(_HORIZON / rate))
        edges = np.concatenate([[0.0], 2.0 ** np.arange(last + 1)])
        half = np.diff(edges)[:, None] / 2
        self._times = (edges[:-1, None] + half * (1 + _NODES)).ravel()
        self._weights = (half * _WEIGHTS).ravel() * np.exp(-rate * self._times)
        large = q > _SMALL / self._times[-1]
        large[self._heads] = False
        self._big = np.flatnonzero(large)
        self._big_rates = q[self._big]
        small = np.where(large, 0.0, q)
        small[self._heads] = 0.0
        powers = np.cumprod(np.tile(small, (_TERMS, 1)), axis=0)
        self._power_sums = np.concatenate([np.zeros((_TERMS, 1)), powers.cumsum(axis=1)], axis=1)

    def misses(self, prefixes: IntArray) -> ProbArray:
        """Probability that the first n arrivals do not all lie in the prefixes of these lengths."""
        heads = self._heads_at_most()[:, np.searchsorted(self._heads, prefixes)]
        arrived = _product(self._big_sums(prefixes), self._small_sums(prefixes))
        # Fewer than n arrivals in all: i of the others, and at most n - 1 - i of the heads.
        few = sum(arrived[i] * heads[:, :, self._n - 1 - i] for i in range(self._n))
        return np.asarray(self._outside[prefixes] * (self._weights @ few))

    def _heads_at_most(self) -> ProbArray:
        """float64 `[times, heads + 1, n]`: probability that of the first h heads at most i have
        arrived, and of the others none."""
        counts = np.zeros((len(self._times), self._n, self._n))
        stays = np.exp(-np.outer(self._times, self._head_rates))
        for h in range(self._n):
            counts[:, h, 0] = stays[:, h:].prod(axis=1)
            for stay in stays[:, :h].T[:, :, None]:
                counts[:, h, 1:] = counts[:, h, 1:] * stay + counts[:, h, :-1] * (1 - stay)
                counts[:, h, :1] *= stay
        return counts.cumsum(axis=2)

    def _big_sums(self, prefixes: IntArray) -> list[ProbArray]:
        """By i, float64 `[times, prefixes]`: sum over sets of i big tokens of their odds' product.

        The odds of a token are those of having arrived.
        """
        odds = np.expm1(np.outer(self._times, self._big_rates))
        before = np.searchsorted(self._big, prefixes)
        sums = np.ones((len(odds), odds.shape[1] + 1))
        out = [sums[:, before]]
        for _ in range(self._n - 1):
            sums = np.pad(np.cumsum(odds * sums[:, :-1], axis=1), ((0, 0), (1, 0)))
            out.append(sums[:, before])
        return out

    def _small_sums(self, prefixes: IntArray) -> list[ProbArray]:
        """As `_big_sums` for the small tokens, from sums of powers by Newton's identities."""
        moments = self._power_sums[:, prefixes]
        powers = []
        series = _EXPM1
        for _ in range(self._n - 1):
            powers.append((self._times[:, None] ** np.arange(_TERMS + 1) * series)[:, 1:] @ moments)
            series = np.convolve(series, _EXPM1)[: _TERMS + 1]
        sums = [np.ones((len(self._times), len(prefixes)))]
        for i in range(1, self._n):
            terms = [(-1) ** j * sums[i - 1 - j] * powers[j] for j in range(i)]
            sums.append(sum(terms[1:], terms[0]) / i)
        return sums


def _product(first: list[ProbArray], second: list[ProbArray]) -> list[ProbArray]:
    """Coefficients of the product of two polynomials, up to the degree of each."""
    return [
        sum((first[j] * second[i - j] for j in range(1, i + 1)), first[0] * second[i])
        for i in range(len(first))
    ]
