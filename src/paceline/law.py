"""Arithmetic on laws: what token rules add, subtract and renormalise. All of it in float64.

Results live on the support of the first law, so truncated laws (top-p, top-k) stay sparse.
"""

from __future__ import annotations

import numpy as np

from paceline.noise import finishers
from paceline.randomness import Draw, Purpose, Randomness
from paceline.types import Law, ProbArray

AGREE = 1e-12
"""Residual mass under which two laws agree up to rounding; the residual is then the first law."""


def one_hot(token: int, size: int) -> Law:
    """The law that is certain of `token`."""
    return Law(np.ones(1), np.array([token], dtype=np.int64), size)


def from_dense(probs: ProbArray) -> Law:
    """The law with the given mass for every token, float64 `[vocabulary]`."""
    return Law(probs, None, len(probs))


def residual(p: Law, q: Law, weight: float = 1.0) -> Law:
    """The normalised (weight p - q)+, or p where nothing is left of it."""
    # In place: fresh arrays of a whole vocabulary cost more than the arithmetic.
    rest = weight * p.probs
    rest -= q.at(p.ids)
    np.maximum(rest, 0.0, out=rest)
    mass = rest.sum()
    if not mass > AGREE:
        return p
    rest /= mass
    return Law(rest, p.ids, p.size)


def without(law: Law, token: int) -> Law | None:
    """`law` given that it is not `token`; None where nothing is left."""
    index = token if law.ids is None else int(np.searchsorted(law.ids, token))
    probs = law.probs.copy()
    probs[index] = 0.0
    mass = probs.sum()
    if not mass > AGREE:
        return None
    probs /= mass
    return Law(probs, law.ids, law.size)


def gumbel_max(law: Law, position: int, randomness: Randomness) -> int:
    """The token of `law` that wins under the noise of `position`; distributed as `law`.

    A certain token needs no noise, so that greedy runs can be enumerated.
    """
    if len(law.probs) == 1:
        return law.token(0)
    return finishers(law, randomness.noise(Draw(position, Purpose.NOISE)))[0]
