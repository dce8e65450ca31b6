"""Laws of draft tuples written out, and the optimum over all rules by brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np

from paceline.core.types import Distribution, ProbArray

Tuples = dict[tuple[int, ...], float]
"""Probability of every ordered tuple of drafts."""


def distribution(
    generator: np.random.Generator, size: int, sharpness: float, zeros: int = 0
) -> Distribution:
    """A random law, some of its tokens impossible."""
    weights = np.exp(sharpness * generator.normal(size=size))
    weights[generator.permutation(size)[:zeros]] = 0
    return Distribution(weights / weights.sum(), None, size)


def independent(q: ProbArray, drafts: int) -> Tuples:
    """Draws from the same law."""
    return {
        drawn: math.prod(q[list(drawn)].tolist())
        for drawn in itertools.product(np.flatnonzero(q).tolist(), repeat=drafts)
    }


def distinct(q: ProbArray, drafts: int) -> Tuples:
    """Draws one after another, each from what is left; as many as there are tokens."""
    support = np.flatnonzero(q).tolist()
    out: Tuples = {}
    for drawn in itertools.permutations(support, min(drafts, len(support))):
        chance = 1.0
        for step, token in enumerate(drawn):
            # Summed from the tokens left: one minus those drawn would lose digits.
            chance *= q[token] / math.fsum(
                q[other] for other in support if other not in drawn[:step]
            )
        out[drawn] = chance
    return out


def most_probable_and_one(q: ProbArray, drafts: int) -> Tuples:
    """The most likely tokens, and one drawn from the rest, if there is any."""
    order = np.argsort(-q, kind="stable").tolist()
    top = order[: min(drafts, np.count_nonzero(q)) - 1]
    rest = {token: q[token] for token in order if token not in top and q[token] > 0}
    return {(*top, token): mass / sum(rest.values()) for token, mass in rest.items()}


def argmax(q: ProbArray, drafts: int) -> Tuples:
    """The most likely tokens, whatever their mass."""
    order = np.argsort(-q, kind="stable")[: np.count_nonzero(q)]
    return {tuple(order[:drafts].tolist()): 1.0}


def best_over_all_subsets(p: ProbArray, tuples: Tuples) -> float:
    """1 + min over every set H of tokens of P(H) - Q(H)."""
    tokens = range(len(p))
    least = 0.0
    for inside in itertools.chain.from_iterable(
        itertools.combinations(tokens, size) for size in range(len(p) + 1)
    ):
        drafted = math.fsum(mass for drawn, mass in tuples.items() if set(drawn) <= set(inside))
        least = min(least, math.fsum(p[list(inside)]) - drafted)
    return 1 + least
