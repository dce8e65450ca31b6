"""Acceptance probability of each verifier at one node, and expected accepted tokens of chains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from paceline.exactness.bounds import (
    best_distinct,
    best_fixed,
    best_iid,
    best_top_and_one,
    overlap,
)
from paceline.exactness.excess import Excess, quotient
from paceline.exactness.pools import Pools
from paceline.law import AGREE
from paceline.noise import finishers
from paceline.randomness import Draw, KeyedRandomness, Purpose
from paceline.types import Law
from paceline.verifiers import k_seq as k_sequences
from paceline.verifiers.path_count import MeasuredChain

# Most histories of rejected tokens that `recursive_distinct` enumerates.
_STATES = 50_000

# Draws of Gumbel noise that estimate `coupled` for several drafts.
_NOISES = 16


def rejection(p: Law, q: Law) -> float:
    """Return the acceptance of token rejection with one draft: 1 - TV(p, q)."""
    return overlap(p, q)


def sample_match(p: Law, q: Law, drafts: int) -> float:
    """Return the acceptance of sample-and-match: p's mass on the n likeliest tokens of q."""
    return best_fixed(p, q, drafts)


def top_and_one(p: Law, q: Law, drafts: int) -> float:
    """Return the acceptance of verifier "top-and-one", optimal for its drafts."""
    return best_top_and_one(p, q, drafts)


def coupled(p: Law, q: Law, drafts: int) -> float:
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


def _wins(p: Law, q: Law, drafts: int, stream: int) -> bool:
    keyed = KeyedRandomness(int(p.probs.max().view(np.uint64)), stream)
    noise = keyed.noise(Draw(0, Purpose.NOISE))
    return finishers(p, noise)[0] in finishers(q, noise, drafts)


def recursive(p: Law, q: Law, drafts: int) -> float:
    """Return the acceptance of recursive rejection with n independent drafts."""
    excess = Excess.of(p, q)
    scales = np.zeros(1)
    for _ in range(drafts):
        # A rejection at scale s leaves the share M(s + M(s)) / M(s), M(s) the mass of (p - s q)+.
        scales = scales + excess.mass(scales)
    return 1.0 - float(excess.mass(scales)[0])


def recursive_distinct(p: Law, q: Law, drafts: int) -> float:
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


def k_seq(p: Law, q: Law, drafts: int) -> float:
    """Return the acceptance of k-SEQ: 1 - (1 - b)^n, b that of one draft."""
    rho = k_sequences.scale(p, q, drafts)
    chance = (1.0 - float(Excess.of(p, q).mass(np.array([rho]))[0])) / rho
    return 1.0 - (1.0 - chance) ** drafts


def by_token(chain: MeasuredChain) -> float:
    """Return the expected accepted tokens of a drawn chain under token rejection.

    Never more than block verification (`path_count.accepted` with one path).
    """
    reached, total = 1.0, 0.0
    for token, q, p in zip(chain.tokens, chain.draft, chain.target, strict=True):
        reached *= min(p.prob(token) / q.prob(token), 1.0)
        total += reached
    return total


@dataclass(frozen=True, slots=True)
class Rule:
    """A verifier, its drafting method, its acceptance and the upper bound of any verifier.

    Both are functions of p, q and a number of drafts between `fewest` and `most` (None: any).
    """

    verifier: str
    drafts: str
    acceptance: Callable[[Law, Law, int], float]
    bound: Callable[[Law, Law, int], float]
    fewest: int = 1
    most: int | None = None

    def takes(self, drafts: int) -> bool:
        return self.fewest <= drafts and (self.most is None or drafts <= self.most)


# Every lossless node-by-node verifier, with the drafts that suit it best.
RULES: tuple[Rule, ...] = (
    Rule("rejection", "independent", lambda p, q, n: rejection(p, q), best_iid, most=1),
    Rule("recursive", "independent", recursive, best_iid, fewest=2),
    Rule("k-seq", "independent", k_seq, best_iid, fewest=2),
    Rule("recursive-distinct", "without replacement", recursive_distinct, best_distinct, fewest=2),
    Rule("top-and-one", "likeliest and one drawn", top_and_one, best_top_and_one, fewest=2),
    Rule("sample-match", "likeliest", sample_match, best_fixed),
    Rule("coupled", "shared noise", coupled, best_distinct),
)
