"""All randomness of the engine, behind one small interface.

Every draw is named by a `Draw`: which position of the sequence it decides, for what purpose, and,
for draws that belong to one round of drafting, at which root. The value is a function of the
request's seed and that name alone, so it depends neither on batching nor on how often a drafter
was right. The same interface takes a scripted oracle (`paceline.exactness`), and then the shipped
verifiers are enumerated over all their branches.
"""

from __future__ import annotations

from enum import IntEnum
from hashlib import blake2b
from typing import NamedTuple, Protocol

import numpy as np

from paceline.noise import TokenNoise
from paceline.types import ProbArray


class Purpose(IntEnum):
    """What a draw decides. Distinct purposes never share random numbers."""

    TARGET = 0  # the target's own token at a position
    NOISE = 1  # noise shared by target and drafter at a position
    ACCEPT = 2  # whether a drafted token stands
    RESIDUAL = 3  # the correction token after a rejection
    DRAFT = 4  # a drafter's token


class Draw(NamedTuple):
    """Name of one draw.

    Attributes:
        position: absolute position of the token that is decided (0 = first prompt token).
        purpose: what is decided.
        sibling: tells draws for one position apart.
        root: position of the root for draws that belong to a round (drafting, acceptance), so
            that a position drafted twice gets fresh numbers; 0 for draws that must repeat.
    """

    position: int
    purpose: Purpose
    sibling: int = 0
    root: int = 0


class Randomness(Protocol):
    """Where draws come from."""

    def choice(self, weights: ProbArray, draw: Draw) -> int:
        """Index drawn with probability proportional to `weights`, float64 `[k]`."""
        ...

    def bernoulli(self, probability: float, draw: Draw) -> bool:
        """True with the given probability."""
        ...

    def uniform(self, size: int, draw: Draw) -> ProbArray:
        """Many numbers at once: float64 `[size]`, uniform in (0, 1)."""
        ...

    def noise(self, draw: Draw) -> TokenNoise:
        """Noise for every token id, computed for those that are asked for."""
        ...


_BLOCK = 512
"""Weights that are summed together before a draw looks inside."""


_REMEMBERED = 256
"""Noises that are kept, a few steps' of them."""


class KeyedRandomness:
    """Every draw is a function of seed, stream and name: a hash, or a generator seeded by one.

    The generator, for many numbers at once, is SFC64, the fastest that numpy has.
    """

    def __init__(self, seed: int, stream: int = 0) -> None:
        """Key by `seed` (of the request) and `stream` (which of its samples this is)."""
        self._key = (seed, stream)
        self._noises: dict[Draw, TokenNoise] = {}  # drafts and the target ask for the same

    def uniform(self, size: int, draw: Draw) -> ProbArray:
        """float64 `[size]`, multiples of 2^-53; 0 is lifted to 2^-54 so that logs are finite."""
        named = np.random.SeedSequence((*self._key, *draw))
        values = np.random.Generator(np.random.SFC64(named)).random(size)
        return np.maximum(values, 2.0**-54, out=values)

    def noise(self, draw: Draw) -> TokenNoise:
        """Keyed by a hash; a digest of another length is another hash than that of `unit`."""
        found = self._noises.get(draw)
        if found is None:
            if len(self._noises) >= _REMEMBERED:
                self._noises.clear()
            found = self._noises[draw] = TokenNoise(self._digest(draw, 16))
        return found

    def unit(self, draw: Draw) -> float:
        """One number like those of `uniform`, by a hash: cheaper than a generator."""
        bits = int.from_bytes(self._digest(draw, 8), "little") >> 11
        return max(bits * 2.0**-53, 2.0**-54)

    def choice(self, weights: ProbArray, draw: Draw) -> int:
        """Index drawn by inversion of the cumulative weights."""
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
        """True when the draw's uniform lies under `probability`."""
        return self.unit(draw) < probability

    def _digest(self, draw: Draw, size: int) -> bytes:
        name = b"(%d, %d, %d, %d, %d, %d)" % (*self._key, *draw)
        return blake2b(name, digest_size=size).digest()
