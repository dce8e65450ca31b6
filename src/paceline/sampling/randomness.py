"""Counter-based randomness: each draw is a function of the request's seed and the draw's name.

Draws depend neither on batching nor on acceptance. A scripted oracle (`paceline.proof`) can
replace this to enumerate all branches of a verifier.
"""

from __future__ import annotations

from enum import IntEnum
from hashlib import blake2b
from typing import NamedTuple, Protocol

import numpy as np

from paceline.core.types import ProbArray
from paceline.sampling.gumbel import GumbelNoise


class Purpose(IntEnum):
    """Purpose of a draw. Distinct purposes never share random numbers."""

    TARGET = 0  # the target's own token at a position
    NOISE = 1  # noise shared by target and drafter at a position
    ACCEPT = 2  # whether a drafted token stands
    RESIDUAL = 3  # the correction token after a rejection
    DRAFT = 4  # a drafter's token
    EXCLUDE = 5  # whether XTC acts at a position


class Draw(NamedTuple):
    """Name of one draw. `position` is absolute; `sibling` separates draws for one position.

    `root` is the root of the round of drafting, so that a position drafted twice gets fresh
    numbers; 0 for draws that must repeat (Gumbel noise).
    """

    position: int
    purpose: Purpose
    sibling: int = 0
    root: int = 0


class Randomness(Protocol):
    """Source of draws."""

    def choice(self, weights: ProbArray, draw: Draw) -> int:
        """Return an index drawn with probability proportional to `weights`, float64 `[k]`."""
        ...

    def bernoulli(self, probability: float, draw: Draw) -> bool: ...

    def uniform(self, size: int, draw: Draw) -> ProbArray:
        """Return float64 `[size]`, uniform in (0, 1)."""
        ...

    def noise(self, draw: Draw) -> GumbelNoise:
        """Return Gumbel noise for every token id, evaluated lazily."""
        ...


# Weights per block in `choice`.
_BLOCK = 512


# Cached noises, for a few steps.
_REMEMBERED = 256


class KeyedRandomness:
    """Randomness keyed by seed and stream: a hash, or SFC64 seeded by one for many numbers."""

    def __init__(self, seed: int, stream: int = 0) -> None:
        """Key by the request's `seed` and by `stream`, the index of its sample."""
        self._key = (seed, stream)
        self._noises: dict[Draw, GumbelNoise] = {}  # drafts and the target ask for the same

    def uniform(self, size: int, draw: Draw) -> ProbArray:
        named = np.random.SeedSequence((*self._key, *draw))
        values = np.random.Generator(np.random.SFC64(named)).random(size)
        return np.maximum(values, 2.0**-54, out=values)

    def noise(self, draw: Draw) -> GumbelNoise:
        # A digest of another length is a different hash from that of `unit`.
        found = self._noises.get(draw)
        if found is None:
            if len(self._noises) >= _REMEMBERED:
                self._noises.clear()
            found = self._noises[draw] = GumbelNoise(self._digest(draw, 16))
        return found

    def unit(self, draw: Draw) -> float:
        """Return one uniform in (0, 1) from a hash: cheaper than seeding a generator."""
        bits = int.from_bytes(self._digest(draw, 8), "little") >> 11
        return max(bits * 2.0**-53, 2.0**-54)

    def choice(self, weights: ProbArray, draw: Draw) -> int:
        # Inversion of the cumulative weights.
        if len(weights) == 1:
            return 0
        # Blocks first: summing a vocabulary is several times faster than cumulating it.
        begins = np.arange(0, len(weights), _BLOCK)
        blocks = np.cumsum(np.add.reduceat(weights, begins))
        target = self.unit(draw) * blocks[-1]
        block = min(int(np.searchsorted(blocks, target, side="right")), len(blocks) - 1)
        begin = int(begins[block])
        inside = np.cumsum(weights[begin : begin + _BLOCK])
        rest = target - (blocks[block - 1] if block else 0.0)
        # Zero weights repeat a cumulative value, and side="right" steps over them; where rounding
        # leads beyond the end, the last weight that is not zero is meant.
        last = int(np.searchsorted(inside, inside[-1]))
        return begin + min(int(np.searchsorted(inside, rest, side="right")), last)

    def bernoulli(self, probability: float, draw: Draw) -> bool:
        return self.unit(draw) < probability

    def _digest(self, draw: Draw, size: int) -> bytes:
        name = b"(%d, %d, %d, %d, %d, %d)" % (*self._key, *draw)
        return blake2b(name, digest_size=size).digest()
