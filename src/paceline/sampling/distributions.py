"""Arithmetic on distributions, in float64: residual, conditioning, Gumbel-max."""

from __future__ import annotations

import numpy as np

from paceline.core.types import Distribution, ProbArray
from paceline.sampling.gumbel import gumbel_top_k
from paceline.sampling.randomness import Draw, Purpose, Randomness

# Residual mass below which two distributions are equal up to rounding.
AGREE = 1e-12


def one_hot(token: int, size: int) -> Distribution:
    return Distribution(np.ones(1), np.array([token], dtype=np.int64), size)


def from_dense(probs: ProbArray) -> Distribution:
    return Distribution(probs, None, len(probs))


def residual(p: Distribution, q: Distribution, weight: float = 1.0) -> Distribution:
    """Return the normalised (weight p - q)+ on p's support, or p where no mass is left."""
    # In place: fresh arrays of a whole vocabulary cost more than the arithmetic.
    rest = weight * p.probs
    rest -= q.at(p.ids)
    np.maximum(rest, 0.0, out=rest)
    mass = rest.sum()
    if not mass > AGREE:
        return p
    rest /= mass
    return Distribution(rest, p.ids, p.size)


def verified(
    p: Distribution, q: Distribution, token: int, position: int, root: int, randomness: Randomness
) -> int:
    """Return a token distributed as p: `token`, drawn from q, with min(1, p/q), or another.

    The other comes from the residual. `root` names the round, see `Draw`.
    """
    accept = min(1.0, p.prob(token) / q.prob(token))
    if randomness.bernoulli(accept, Draw(position, Purpose.ACCEPT, root=root)):
        return token
    rest = residual(p, q)
    return rest.token(randomness.choice(rest.probs, Draw(position, Purpose.RESIDUAL, root=root)))


def without(distribution: Distribution, token: int) -> Distribution | None:
    """Return `distribution` conditioned on not being `token`; None where no mass is left."""
    index = token if distribution.ids is None else int(np.searchsorted(distribution.ids, token))
    probs = distribution.probs.copy()
    probs[index] = 0.0
    mass = probs.sum()
    if not mass > AGREE:
        return None
    probs /= mass
    return Distribution(probs, distribution.ids, distribution.size)


def gumbel_max(distribution: Distribution, position: int, randomness: Randomness) -> int:
    """Return the Gumbel-max token at `position`; a one-hot distribution draws no noise."""
    if len(distribution.probs) == 1:
        return distribution.token(0)
    return gumbel_top_k(distribution, randomness.noise(Draw(position, Purpose.NOISE)))[0]
