"""Number of paths to draw for multi-path block verification, from measured acceptance.
E[accepted] is the mean of w(u) / Q(u) over chains drawn from Q, with w(u) = min(w(parent) p,
Q~(u)) and Q~ the distribution of the selected path: chains drawn once give an unbiased estimate
for any number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean
from typing import NamedTuple

from paceline.errors import InvalidOption
from paceline.types import Law
from paceline.verifiers.multipath_block import Competition


@dataclass(frozen=True, slots=True)
class MeasuredChain:
    """Drawn chain; per token, the distribution it was drawn from and the target's at its parent."""

    tokens: Sequence[int]
    draft: Sequence[Law]
    target: Sequence[Law]


class _State(NamedTuple):
    # One way that the paths may have reached a prefix: `paths` pass through it, a share
    # `weight` of the selected path's mass is accepted, and that mass is `lift` times Q.

    paths: int
    weight: float
    lift: float


def accepted(chain: MeasuredChain, count: int) -> float:
    """Return `chain`'s estimate of the accepted tokens per round with `count` paths.

    The mean over chains drawn from the drafter is the expectation; one path is block verification.
    """
    states, total = [_State(count, 1.0, 1.0)], 0.0
    for token, q, p in zip(chain.tokens, chain.draft, chain.target, strict=True):
        mass, wanted = q.prob(token), p.prob(token)
        competition = Competition(p, q) if states[0].paths > 1 else None
        lower, group = competition.masses(token) if competition else (0.0, mass)
        following: list[_State] = []
        for paths, weight, lift in states:
            competing, selected = 1, mass
            if competition and paths > 1:
                competing, law = competition.law(paths, weight)
                selected = law.prob(token)
            weight = min(1.0, weight * wanted / selected)
            total += lift * selected / mass * weight
            for agreeing in range(1, competing + 1):
                share = _share(competing, agreeing, mass, group, lower)
                others = paths - competing
                for more in range(others + 1):
                    chance = comb(others, more) * mass**more * (1 - mass) ** (others - more)
                    following.append(_State(agreeing + more, weight, lift * share / mass * chance))
        states = sorted(following, reverse=True)
    return total


def choose_count(
    chains: Sequence[MeasuredChain],
    most: int,
    cost: Callable[[int], float] = lambda count: 1.0,
) -> int:
    """Return the number of paths, 1 to `most`, that commits most tokens per unit of `cost`.

    Raises:
        InvalidOption: there is no chain, or `most` is below 1.
    """
    if not chains or most < 1:
        raise InvalidOption("choosing a number of paths needs measured chains and 1 or more paths")

    def rate(count: int) -> float:
        return (1 + fmean(accepted(chain, count) for chain in chains)) / cost(count)

    return max(range(1, most + 1), key=rate)


def _share(draws: int, agreeing: int, mass: float, group: float, lower: float) -> float:
    # Probability that a token is the best of `draws` and is drawn `agreeing` times. With t
    # draws in its group and all others in lower ones, it must be the first of the t.
    return sum(
        comb(draws, t)
        * lower ** (draws - t)
        * comb(t - 1, agreeing - 1)
        * mass**agreeing
        * (group - mass) ** (t - agreeing)
        for t in range(agreeing, draws + 1)
    )
