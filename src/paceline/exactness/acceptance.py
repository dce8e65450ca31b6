"""What a rule accepts, from p and q alone: probabilities at one node, expected lengths of chains.

The probability that a node's drafts hold the token that verification emits, over all randomness of
drafting and verification. Tests compare these figures with the shipped rules by enumeration.
"""

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

_STATES = 50_000
"""Most histories of rejected tokens that `recursive_distinct` tells apart."""

_NOISES = 16
"""Draws of noise that estimate `coupled` for several drafts."""


def rejection(p: Law, q: Law) -> float:
    """Token rejection of one draft: 1 less the total variation of p and q."""
    return overlap(p, q)


def sample_match(p: Law, q: Law, drafts: int) -> float:
    """Sample-and-match of the n likeliest tokens of q: p's mass on them."""
    return best_fixed(p, q, drafts)


def top_and_one(p: Law, q: Law, drafts: int) -> float:
    """Verifier "top-and-one", which attains the optimum of its draft law."""
    return best_top_and_one(p, q, drafts)


def coupled(p: Law, q: Law, drafts: int) -> float:
    """Coupled verification of the n best tokens under shared noise.

    One draft (Daliri et al. 2025, arXiv:2408.07978): token x wins both races, of rates p and q, if
    every other token y arrives later than x by the factor max(p(y) / p(x), q(y) / q(x)) at least,
    which has probability 1 / sum over y of that factor. The larger of the two terms is known from
    which of the ratios p / q is larger, so it takes one sort.

    More drafts: an estimate, the share of 16 draws of noise under which the winner for p is among
    the first n for q. The noise is a function of p, so equal arguments give equal answers.
    """
    if drafts > 1:
        hits = (_wins(p, q, drafts, stream) for stream in range(_NOISES))
        return sum(hits) / _NOISES
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
    """Whether p's winner is drafted under one draw of noise."""
    keyed = KeyedRandomness(int(p.probs.max().view(np.uint64)), stream)
    noise = keyed.noise(Draw(0, Purpose.NOISE))
    return finishers(p, noise)[0] in finishers(q, noise, drafts)


def recursive(p: Law, q: Law, drafts: int) -> float:
    """Recursive rejection of n independent drafts.

    A rejection turns the residual of scale s into that of scale s + M(s), and leaves the share
    M(s + M(s)) / M(s), where M(s) is the mass of (p - s q)+.
    """
    excess = Excess.of(p, q)
    scales = np.zeros(1)
    for _ in range(drafts):
        scales = scales + excess.mass(scales)
    return 1.0 - float(excess.mass(scales)[0])


def recursive_distinct(p: Law, q: Law, drafts: int) -> float:
    """Recursive rejection of n drafts drawn without replacement.

    As `recursive`, but rejected tokens leave q. So scales grow by M(s) / (1 - q(rejected)), which
    is more, and the sum goes over histories of rejected tokens. What matters of a token is q(x)
    alone: the likeliest are told apart, the others are pooled where there are more than fit, and
    count with the mean of their pool. Exact where nothing is pooled, otherwise to about 1e-4.
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
    """k-SEQ of n independent drafts: 1 - (1 - b)^n, b the chance that one draft is accepted."""
    rho = k_sequences.scale(p, q, drafts)
    chance = (1.0 - float(Excess.of(p, q).mass(np.array([rho]))[0])) / rho
    return 1.0 - (1.0 - chance) ** drafts


def by_token(chain: MeasuredChain) -> float:
    """Tokens of a drawn chain that token rejection accepts, on average over its coins.

    What block verification accepts of it is `paceline.verifiers.path_count.accepted` with one
    path: an unbiased estimate, and never less than this, since min(w p / q, 1) is at least w
    min(p / q, 1) at every depth.
    """
    reached, total = 1.0, 0.0
    for token, q, p in zip(chain.tokens, chain.draft, chain.target, strict=True):
        reached *= min(p.prob(token) / q.prob(token), 1.0)
        total += reached
    return total


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, the drafts it is shown, and what it and what any rule accepts of them.

    Attributes:
        verifier: registry name.
        drafts: how the drafts of a node come about.
        acceptance: from p, q and a number of drafts.
        bound: likewise; the most that any lossless rule accepts of such drafts.
        fewest: drafts of a node that the rule is for.
        most: likewise; None for any number.
    """

    verifier: str
    drafts: str
    acceptance: Callable[[Law, Law, int], float]
    bound: Callable[[Law, Law, int], float]
    fewest: int = 1
    most: int | None = None

    def takes(self, drafts: int) -> bool:
        """Whether the rule is for so many drafts."""
        return self.fewest <= drafts and (self.most is None or drafts <= self.most)


RULES: tuple[Rule, ...] = (
    Rule("rejection", "independent", lambda p, q, n: rejection(p, q), best_iid, most=1),
    Rule("recursive", "independent", recursive, best_iid, fewest=2),
    Rule("k-seq", "independent", k_seq, best_iid, fewest=2),
    Rule("recursive-distinct", "without replacement", recursive_distinct, best_distinct, fewest=2),
    Rule("top-and-one", "likeliest and one drawn", top_and_one, best_top_and_one, fewest=2),
    Rule("sample-match", "likeliest", sample_match, best_fixed),
    Rule("coupled", "shared noise", coupled, best_distinct),
)
"""Every lossless rule that decides node by node, each with the drafts that suit it best."""
