"""Arithmetic on distributions, in float64: residual, conditioning, Gumbel-max."""

from __future__ import annotations

import numpy as np

from paceline.noise import finishers
from paceline.randomness import Draw, Purpose, Randomness
from paceline.types import Law, ProbArray

# Residual mass below which two distributions are equal up to rounding.
AGREE = 1e-12


def one_hot(token: int, size: int) -> Law:
    return Law(np.ones(1), np.array([token], dtype=np.int64), size)


def from_dense(probs: ProbArray) -> Law:
    return Law(probs, None, len(probs))


def residual(p: Law, q: Law, weight: float = 1.0) -> Law:
    """Return the normalised (weight p - q)+ on p's support, or p where no mass is left."""
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
    """Return `law` conditioned on not being `token`; None where no mass is left."""
    index = token if law.ids is None else int(np.searchsorted(law.ids, token))
    probs = law.probs.copy()
    probs[index] = 0.0
    mass = probs.sum()
    if not mass > AGREE:
        return None
    probs /= mass
    return Law(probs, law.ids, law.size)


def gumbel_max(law: Law, position: int, randomness: Randomness) -> int:
    """Return the Gumbel-max token at `position`; a one-hot distribution draws no noise."""
    if len(law.probs) == 1:
        return law.token(0)
    return finishers(law, randomness.noise(Draw(position, Purpose.NOISE)))[0]
