"""Upper bounds of multi-draft acceptance by optimal transport (Hu et al. 2025, arXiv:2502.18779).

The dual of the transport problem is 1 + min over token sets H of P(H) - Q(H): the target's mass on
H, less the probability that all drafts lie in H. For the drafts below a prefix of the tokens sorted
by q / p, descending, attains the minimum (sections 3 and 4), so one scan finds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from paceline.core.types import Distribution, IntArray, ProbArray
from paceline.errors import InvalidOption
from paceline.sampling.distributions import AGREE, without
from paceline.sampling.gumbel import gumbel_top_k
from paceline.sampling.randomness import Draw, KeyedRandomness, Purpose
from paceline.sampling.sampler import top_k_ids
from paceline.verifiers import k_seq as k_sequences
from paceline.verifiers.multipath_block import MeasuredChain

# Gauss-Legendre rule of one panel of the time axis.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)

# Expected late arrivals after which the integrand is below rounding.
_HORIZON = 80.0

# Most expected arrivals of a token, over all times, for its odds to come from a series.
_SMALL = 0.1

# Terms of that series.
_TERMS = 10

# Coefficients of exp(x) - 1.
_EXPM1 = np.array([0.0, *(1 / math.factorial(i) for i in range(1, _TERMS + 1))])

# Initial gaps between prefixes in the search for the best one.
_PARTS = 64


def best_iid(p: Distribution, q: Distribution, drafts: int) -> float:
    """Return the optimal acceptance of n independent drafts; raises InvalidOption if n < 1."""
    _check(drafts)
    scan = _Scan.of(p, q)
    # 1 - q(H)^n without cancellation where q(H) is close to one.
    with np.errstate(divide="ignore"):
        misses = -np.expm1(drafts * np.log1p(-np.minimum(scan.outside, 1.0)))
    return scan.optimum(misses)


def best_distinct(p: Distribution, q: Distribution, drafts: int) -> float:
    """Return the optimal acceptance of n drafts drawn without replacement; raises as `best_iid`.

    Drafts are the first n arrivals of a race with rates q(x), so

        1 - Q(H) = (1 - q(H)) * integral over t > 0 of P(H has fewer than n arrivals by time t,
                                                         and no other token has any).

    A Gauss rule on panels that double in length integrates it.
    """
    _check(drafts)
    ascending = np.sort(q.probs)
    while drafts > 1 and ascending[: 1 - drafts].sum() <= AGREE:
        drafts -= 1
    if drafts == 1:
        return best_iid(p, q, 1)
    # Tokens so unlikely that together they change the result by less than AGREE are left out of H.
    likely = AGREE * ascending[: 1 - drafts].sum() / drafts
    scan = _Scan.of(p, q, dropped=likely)
    return scan.search(_Race(scan.q, scan.outside, drafts).misses)


def best_top_and_one(p: Distribution, q: Distribution, drafts: int) -> float:
    """Return the optimal acceptance of n - 1 most likely tokens of q and one draw from the rest.

    Verifier "top-and-one" attains it. Raises as `best_iid`.
    """
    _check(drafts)
    sure, rest = 0.0, q
    for index in top_k_ids(q.probs, min(drafts, len(q.probs)))[: drafts - 1].tolist():
        left = without(rest, q.token(index))
        if left is None:  # as in drafting: something must be left to draw from
            break
        sure, rest = sure + p.prob(q.token(index)), left
    return sure + overlap(p, rest)


def best_fixed(p: Distribution, q: Distribution, drafts: int) -> float:
    """Return the optimal acceptance of the n most likely tokens of q: their target mass.

    Sample-and-match attains it. Raises as `best_iid`.
    """
    _check(drafts)
    argmax = top_k_ids(q.probs, min(drafts, int(np.count_nonzero(q.probs))))
    return float(p.at(np.sort(argmax if q.ids is None else q.ids[argmax])).sum())


def overlap(p: Distribution, q: Distribution) -> float:
    """Return the sum of min(p, q), 1 - TV(p, q): the acceptance of token rejection."""
    return float(np.minimum(p.probs, q.at(p.ids)).sum())


def _check(drafts: int) -> None:
    if drafts < 1:
        raise InvalidOption(f"the number of drafts must be 1 or more, not {drafts}")


@dataclass(frozen=True)
class _Scan:
    """Tokens of q by q / p, descending; per prefix its target mass and the draft mass beyond."""

    inside: ProbArray
    outside: ProbArray
    q: ProbArray

    @classmethod
    def of(cls, p: Distribution, q: Distribution, dropped: float = 0.0) -> _Scan:
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
        return min(1.0, float((self.inside + misses).min()))

    def search(self, misses: Callable[[IntArray], ProbArray]) -> float:
        ends = np.unique(np.linspace(0, len(self.q), _PARTS + 1).astype(np.int64))
        known = dict(zip(ends.tolist(), misses(ends).tolist(), strict=True))
        gaps = list(pairwise(ends.tolist()))
        best = 1.0
        # Branch and bound: `inside` grows and `misses` shrinks from prefix to prefix, so between
        # two known ones their sum is at least `inside` at the shorter plus `misses` at the longer.
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
    """Race of exponential arrivals at rates q, over prefixes of the tokens.

    The n - 1 most likely tokens are heads, apart, since their odds overflow at late times. Big ones
    enter running sums; small ones, nearly all, enter power sums, with their odds as a series.
    """

    def __init__(self, q: ProbArray, outside: ProbArray, n: int) -> None:
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
        heads = self._heads_at_most()[:, np.searchsorted(self._heads, prefixes)]
        arrived = _product(self._big_sums(prefixes), self._small_sums(prefixes))
        # Fewer than n arrivals in all: i of the others, and at most n - 1 - i of the heads.
        few = sum(arrived[i] * heads[:, :, self._n - 1 - i] for i in range(self._n))
        return np.asarray(self._outside[prefixes] * (self._weights @ few))

    def _heads_at_most(self) -> ProbArray:
        # float64 `[times, heads + 1, n]`: probability that of the first h heads at most i have
        # arrived, and of the others none.
        counts = np.zeros((len(self._times), self._n, self._n))
        stays = np.exp(-np.outer(self._times, self._head_rates))
        for h in range(self._n):
            counts[:, h, 0] = stays[:, h:].prod(axis=1)
            for stay in stays[:, :h].T[:, :, None]:
                counts[:, h, 1:] = counts[:, h, 1:] * stay + counts[:, h, :-1] * (1 - stay)
                counts[:, h, :1] *= stay
        return counts.cumsum(axis=2)

    def _big_sums(self, prefixes: IntArray) -> list[ProbArray]:
        odds = np.expm1(np.outer(self._times, self._big_rates))
        before = np.searchsorted(self._big, prefixes)
        sums = np.ones((len(odds), odds.shape[1] + 1))
        out = [sums[:, before]]
        for _ in range(self._n - 1):
            sums = np.pad(np.cumsum(odds * sums[:, :-1], axis=1), ((0, 0), (1, 0)))
            out.append(sums[:, before])
        return out

    def _small_sums(self, prefixes: IntArray) -> list[ProbArray]:
        # Elementary symmetric sums from power sums, by Newton's identities.
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
    return [
        sum((first[j] * second[i - j] for j in range(1, i + 1)), first[0] * second[i])
        for i in range(len(first))
    ]


@dataclass(frozen=True)
class Excess:
    """Mass of (p - s q)+ as a function of s, in O(log V) after one sort.

    `ratios` are q / p of the target's tokens, ascending; `p` and `q` running sums, `[k + 1]`.
    """

    ratios: ProbArray
    p: ProbArray
    q: ProbArray

    @classmethod
    def of(cls, p: Distribution, q: Distribution) -> Excess:
        mine, theirs = p.probs, q.at(p.ids)
        mine, theirs = mine[mine > 0], theirs[mine > 0]
        return cls(*_ascending(quotient(theirs, mine), mine, theirs))

    def mass(self, scales: ProbArray) -> ProbArray:
        with np.errstate(divide="ignore"):
            count = np.searchsorted(self.ratios, 1.0 / scales)
        return np.maximum(self.p[count] - scales * self.q[count], 0.0)


def _ascending(
    ratios: ProbArray, p: ProbArray, q: ProbArray
) -> tuple[ProbArray, ProbArray, ProbArray]:
    """Return ratios in order, and running sums of `p` and `q` in that order, `[k + 1]`."""
    order = np.argsort(ratios)
    zero = np.zeros(1)
    sums = [np.concatenate([zero, np.cumsum(each[order])]) for each in (p, q)]
    return ratios[order], sums[0], sums[1]


def quotient(first: ProbArray, second: ProbArray) -> ProbArray:
    """Return ratios of masses; infinite on overflow."""
    with np.errstate(over="ignore"):
        return first / second


@dataclass(frozen=True)
class Pools:
    """Tokens of q: the most likely as singles, the others in pools of similar q.

    `mean` is float64 `[singles + pools]`, the self-weighted mean of a token's draft mass.
    """

    p: ProbArray
    q: ProbArray
    pooled: tuple[_Pool, ...]
    mean: ProbArray

    @classmethod
    def of(cls, p: Distribution, q: Distribution, count: int) -> Pools:
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
        return cls(*_ascending(quotient(p, q), p, q))

    def rejected(
        self, scales: ProbArray, onward: ProbArray, left: ProbArray, rest: ProbArray
    ) -> ProbArray:
        none, some = np.searchsorted(self.ratios, scales), np.searchsorted(self.ratios, onward)
        taken = self.p[some] - self.p[none] - scales * (self.q[some] - self.q[none])
        return np.maximum(self.q[some] / rest - taken / left, 0.0)


# Most histories of rejected tokens that `recursive_distinct` enumerates.
_STATES = 50_000

# Draws of Gumbel noise that estimate `coupled` for several drafts.
_NOISES = 16


def coupled(p: Distribution, q: Distribution, drafts: int) -> float:
    """Return the acceptance of coupled verification of n drafts under shared Gumbel noise.

    One draft: exact (Daliri et al. 2025, arXiv:2408.07978). More: an estimate from a few draws of
    noise, keyed by p, so equal arguments give equal answers.
    """
    if drafts > 1:
        hits = (_wins(p, q, drafts, stream) for stream in range(_NOISES))
        return sum(hits) / _NOISES
    # Token x wins both races if every other y arrives later by the factor max(p(y) / p(x),
    # q(y) / q(x)): probability 1 / (sum over y of it). Sorting by q / p tells the larger term.
    mine, theirs = p.probs, q.at(p.ids)
    both = (mine > 0) & (theirs > 0)
    outside_p, outside_q = mine[~both].sum(), 1.0 - theirs[both].sum()
    mine, theirs = mine[both], theirs[both]
    order = np.argsort(quotient(theirs, mine))
    mine, theirs = mine[order], theirs[order]
    above = outside_p + np.cumsum(mine) - mine
    below = max(outside_q, 0.0) + np.cumsum(theirs[::-1])[::-1]
    return float((1.0 / (quotient(above, mine) + quotient(below, theirs))).sum())


def _wins(p: Distribution, q: Distribution, drafts: int, stream: int) -> bool:
    keyed = KeyedRandomness(int(p.probs.max().view(np.uint64)), stream)
    noise = keyed.noise(Draw(0, Purpose.NOISE))
    return gumbel_top_k(p, noise)[0] in gumbel_top_k(q, noise, drafts)


def recursive(p: Distribution, q: Distribution, drafts: int) -> float:
    """Return the acceptance of recursive rejection with n independent drafts."""
    excess = Excess.of(p, q)
    scales = np.zeros(1)
    for _ in range(drafts):
        # A rejection at scale s leaves the share M(s + M(s)) / M(s), M(s) the mass of (p - s q)+.
        scales = scales + excess.mass(scales)
    return 1.0 - float(excess.mass(scales)[0])


def recursive_distinct(p: Distribution, q: Distribution, drafts: int) -> float:
    """Return the acceptance of recursive rejection with n drafts drawn without replacement.

    Sums over histories of rejected tokens; exact unless tokens are pooled (`pools`).
    """
    excess = Excess.of(p, q)
    pools = Pools.of(p, q, int(_STATES ** (1 / (drafts - 1))) if drafts > 2 else len(q.probs))
    weight, scales, rest = np.ones(1), np.zeros(1), np.ones(1)
    gone = np.zeros((1, 0), dtype=np.int64)
    lost = 0.0
    for _ in range(drafts - 1):
        left = excess.mass(scales)
        onward = scales + left / rest
        rejected = pools.rejected(scales, onward, left, rest, gone)
        # What pools get wrong of the total is known: the share of p that is still not accepted.
        total = np.maximum(rejected.sum(axis=1), AGREE)
        rejected *= (weight * excess.mass(onward) / left / total)[:, None]
        state, pool = np.nonzero(rejected)
        weight, scales = rejected[state, pool], onward[state]
        rest = rest[state] - pools.mean[pool]
        gone = np.column_stack([gone[state], pool])
        # Where no draft or no residual is left, the rule ends with the rejections so far.
        over = (rest <= AGREE) | (excess.mass(scales) <= AGREE)
        lost += float(weight[over].sum())
        weight, scales, rest, gone = weight[~over], scales[~over], rest[~over], gone[~over]
    left = excess.mass(scales)
    return 1.0 - lost - float((weight * excess.mass(scales + left / rest) / left).sum())


def k_seq(p: Distribution, q: Distribution, drafts: int) -> float:
    """Return the acceptance of k-SEQ: 1 - (1 - b)^n, b that of one draft."""
    rho = k_sequences.scale(p, q, drafts)
    chance = (1.0 - float(Excess.of(p, q).mass(np.array([rho]))[0])) / rho
    return 1.0 - (1.0 - chance) ** drafts


def by_token(chain: MeasuredChain) -> float:
    """Return the expected accepted tokens of a drawn chain under token rejection.

    Never more than block verification (`multipath_block.accepted` with one path).
    """
    reached, total = 1.0, 0.0
    for token, q, p in zip(chain.tokens, chain.draft, chain.target, strict=True):
        reached *= min(p.prob(token) / q.prob(token), 1.0)
        total += reached
    return total


@dataclass(frozen=True, slots=True)
class BoundedRule:
    """A verifier, its drafting method, its acceptance and the upper bound of any verifier.

    Both are functions of p, q and a number of drafts between `fewest` and `most` (None: any).
    """

    verifier: str
    drafts: str
    acceptance: Callable[[Distribution, Distribution, int], float]
    bound: Callable[[Distribution, Distribution, int], float]
    fewest: int = 1
    most: int | None = None

    def takes(self, drafts: int) -> bool:
        return self.fewest <= drafts and (self.most is None or drafts <= self.most)


# Every lossless node-by-node verifier, with the drafts that suit it best.
RULES: tuple[BoundedRule, ...] = (
    BoundedRule("rejection", "independent", lambda p, q, n: overlap(p, q), best_iid, most=1),
    BoundedRule("recursive", "independent", recursive, best_iid, fewest=2),
    BoundedRule("k-seq", "independent", k_seq, best_iid, fewest=2),
    BoundedRule(
        "recursive-distinct", "without replacement", recursive_distinct, best_distinct, fewest=2
    ),
    BoundedRule("top-and-one", "top and one drawn", best_top_and_one, best_top_and_one, fewest=2),
    BoundedRule("sample-match", "argmax", best_fixed, best_fixed),
    BoundedRule("coupled", "shared noise", coupled, best_distinct),
)
