"""Drawing several distinct tokens from one law: one after another, or all at once by a race.

Both give the same law of ordered tokens. Draws one after another have countable outcomes, so they
can be enumerated; the race needs one pass over the support however many tokens are wanted.
"""

from __future__ import annotations

import numpy as np

from paceline.growth.base import Names
from paceline.law import without
from paceline.randomness import Randomness
from paceline.sampling import top_k_ids
from paceline.types import IntArray, Law, ProbArray


def successive(q: Law, count: int, names: Names, randomness: Randomness) -> list[int]:
    """Up to `count` tokens, each drawn from what its elders left of `q`.

    Fewer where less than `paceline.law.AGREE` is left.
    """
    tokens: list[int] = []
    rest: Law | None = q
    while rest is not None and len(tokens) < count:
        tokens.append(rest.token(randomness.choice(rest.probs, names())))
        rest = without(rest, tokens[-1]) if len(tokens) < count else None
    return tokens


def race(probs: ProbArray, uniform: ProbArray, count: int) -> IntArray:
    """Indices of the first `count` finishers of an exponential race, the winner first.

    With Gumbel noise g = -log(-log u), the order of finishing -log(u) / p is that of log p + g, so
    this is Gumbel-top-k: the finishers are drawn without replacement in that order.

    Args:
        probs: float64 `[k]`. Entries of zero never finish, so there may be fewer finishers.
        uniform: float64 `[k]`, in (0, 1).
        count: finishers wanted.
    """
    with np.errstate(divide="ignore", over="ignore"):
        speed = np.log(uniform) / probs
    return top_k_ids(speed, min(count, int(np.count_nonzero(probs))))
