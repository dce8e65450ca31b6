"""Sampling without replacement: sequential, or by an exponential race (Gumbel-top-k).

Both have the same distribution. Sequential draws can be enumerated; the race takes one pass.
"""

from __future__ import annotations

import numpy as np

from paceline.growth.base import Names
from paceline.law import without
from paceline.randomness import Randomness
from paceline.sampling import top_k_ids
from paceline.types import IntArray, Law, ProbArray


def successive(q: Law, count: int, names: Names, randomness: Randomness) -> list[int]:
    """Sample up to `count` tokens, fewer where less than `paceline.law.AGREE` of `q` is left."""
    tokens: list[int] = []
    rest: Law | None = q
    while rest is not None and len(tokens) < count:
        tokens.append(rest.token(randomness.choice(rest.probs, names())))
        rest = without(rest, tokens[-1]) if len(tokens) < count else None
    return tokens


def race(probs: ProbArray, uniform: ProbArray, count: int) -> IntArray:
    """Return the first `count` finishers of an exponential race: Gumbel-top-k of log p.

    Zero entries of `probs` never finish. `uniform` is float64 `[k]`, in (0, 1).
    """
    with np.errstate(divide="ignore", over="ignore"):
        speed = np.log(uniform) / probs
    return top_k_ids(speed, min(count, int(np.count_nonzero(probs))))
