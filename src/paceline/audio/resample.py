"""Sound at the rate of models, to the same bits everywhere.

A sample is a sum of those around it, by a low pass under Kaiser's window. As in `audio.mel`,
samples and weights have so few bits that float64 adds their products without rounding.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from paceline.audio.mel import RATE
from paceline.core.types import LogitArray

_Floats = npt.NDArray[np.float64]

# Of the low pass: samples of the lower rate on either side, where it falls by half as a part of
# the band, and how steep the window is. What lies above the band is 80 dB less.
_REACH, _EDGE, _BETA = 48, 0.947, 8.0

# A product has 51 bits behind the point; absolute weights sum up to less than 4.
_SAMPLE_BITS, _TABLE_BITS = 23, 28

_GROUP = 32  # samples that are made by one matrix
_PIECE = 16 * RATE  # samples that are made at once, so that a matrix serves several times


class Resampler:
    """Makes sound of another rate, piece by piece; where pieces end does not matter."""

    def __init__(self, rate: int, piece: int = _PIECE) -> None:
        """Begin a sound of so many samples a second; `piece` samples at least are made at once."""
        self._piece = piece
        common = math.gcd(rate, RATE)
        self._up, self._down = RATE // common, rate // common
        # Weights are the same again after a period: so many samples here, and so many there.
        self._period = self._up * -(-20 * _GROUP // self._up)
        self._theirs = self._period // self._up * self._down
        self._reach = math.ceil(_REACH * max(1, rate / RATE))
        self._held: list[_Floats] = [np.zeros(self._reach - 1)]  # from one before the next on
        self._waiting = 0  # samples of theirs that are held

    def feed(self, samples: _Floats) -> LogitArray:
        """Return what can be made behind some samples `[n]`, float64 from -1 to 1, as float32."""
        self._held.append(samples)
        self._waiting += len(samples)
        periods = max(0, self._waiting - self._reach - self._down) // self._theirs
        if periods * self._period < self._piece:
            return np.zeros(0, np.float32)
        return self._make(periods)

    def end(self) -> LogitArray:
        """Return the last samples; behind them all are zero."""
        periods = -(-self._waiting // self._theirs)
        most = -(-self._waiting * self._up // self._down)
        self._held.append(np.zeros(self._theirs + self._reach + self._down))
        return self._make(periods)[:most]

    def _make(self, periods: int) -> LogitArray:
        grid = np.float64(2**_SAMPLE_BITS)
        sound = np.rint(np.concatenate(self._held) * grid) / grid
        out = np.empty((periods, self._period), np.float32)
        for begin in range(0, self._period if periods else 0, _GROUP):
            before, phase = divmod(begin * self._down, self._up)
            count = min(_GROUP, self._period - begin)
            matrix = _weights(self._reach, self._up, self._down, phase, count)
            frames = np.lib.stride_tricks.sliding_window_view(sound[before:], len(matrix))
            out[:, begin : begin + count] = frames[:: self._theirs][:periods] @ matrix
        self._held = [sound[periods * self._theirs :]]
        self._waiting -= periods * self._theirs
        return out.reshape(-1)


@lru_cache(maxsize=32)
def _weights(reach: int, up: int, down: int, phase: int, count: int) -> _Floats:
    # Of samples from `reach` - 1 before on, for `count` samples: the first lies `phase` parts of
    # `up` behind the one where it begins.
    behind = (phase + np.arange(count) * down) / up
    at = np.arange(1 - reach, reach + math.ceil(behind[-1]))[:, None] - behind
    edge = _EDGE * min(1.0, up / down)
    turns = edge * at
    whole = np.rint(turns)
    x = (turns - whole) * math.pi
    square, sine = x * x, np.zeros_like(x)
    for k in range(11, 0, -1):
        sine = (sine + 1) * -square / (2 * k * (2 * k + 1))
    sine = (x * sine + x) * (1 - 2 * (whole % 2))
    centre = at == 0
    wave = np.where(centre, edge, sine / (math.pi * np.where(centre, 1, at)))
    inside = 1 - (at / reach) ** 2
    found = wave * np.where(inside < 0, 0, _bessel(np.maximum(inside, 0)) / _bessel(np.ones(1)))
    return np.rint(found * 2.0**_TABLE_BITS) / 2.0**_TABLE_BITS


def _bessel(square: _Floats) -> _Floats:
    # Bessel's I0 of `_BETA` times a root, by its series.
    x, total = square * (_BETA / 2) ** 2, np.zeros_like(square)
    for k in range(40, 0, -1):
        total = (total + 1) * x / k**2
    return total + 1
