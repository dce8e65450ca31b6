"""Log-mel frames of sound, to the same bits everywhere (Radford et al. 2022, arXiv:2212.04356).

A Fourier transform of so few numbers is two products of matrices. Samples and tables are cut to so
many bits that float64 adds them without rounding: then the order of a sum does not matter, and any
library may multiply. All that follows is elementwise.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from paceline.core.types import LogitArray
from paceline.errors import InvalidOption

RATE = 16_000
"""Samples a second."""

HOP = 160
"""Samples from frame to frame."""

WINDOW = 30 * RATE
"""Samples that a model hears at once."""

_SIZE = 400  # samples that a frame sees
_HALF = _SIZE // 2
_BINS = _HALF + 1
_BELOW = 8  # powers of ten, from the loudest

# Samples are multiples of 2^-23, as files of 24 bits have them, and tables of 2^-21 and what is
# left of 2^-42: a product of both, summed over two folded halves, has at most 53 bits.
_SAMPLE_BITS, _TABLE_BITS = 23, 21

_PI = 3.141592653589793

_Floats = npt.NDArray[np.float64]


def log_mel(samples: LogitArray, mels: int = 80) -> LogitArray:
    """Return float32 `[len(samples) // HOP, mels]`, as Whisper reads them.

    Sound is reflected at both ends. Frames are clipped at eight powers of ten below the loudest.

    Args:
        samples: float32 `[n]` at `RATE`, clipped to -1 and 1; quieter steps than 2^-23 are lost.
        mels: 80 or 128.

    Raises:
        InvalidOption: no more samples than half a frame, or some that are not finite.
    """
    if samples.ndim != 1 or len(samples) <= _HALF:
        raise InvalidOption(
            f"sound of {samples.size} samples is shorter than a frame: give at least {_HALF + 1}"
        )
    logs = _logs(_reflected(_cut_samples(samples), True, True), mels)[: len(samples) // HOP]
    return _scaled(np.maximum(logs, logs.max(initial=-np.inf) - _BELOW))


class MelStream:
    """Frames of a sound that comes in pieces, the same ones in whichever pieces.

    Those of a chunk are clipped by the loudest of it and of the chunks before: later sound changes
    none. The last one reads a quarter of a hop beyond its chunk.
    """

    def __init__(self, chunk: int, mels: int = 80) -> None:
        """Begin; `chunk` is in frames."""
        self._chunk, self._mels, self._loudest = chunk, mels, -np.inf
        self._sound: _Floats = np.zeros(0)  # from the first sample of the next frame on
        self._begun = False

    def push(self, samples: LogitArray) -> LogitArray:
        """Add float32 samples at `RATE`; return `[n, mels]`, frames of the chunks that are whole.

        InvalidOption: some are not finite.
        """
        return self._frames(_cut_samples(samples), False)

    def end(self) -> LogitArray:
        """Return the frames that are left, an even number: silence fills up the last row."""
        known = len(self._sound) - _HALF * self._begun
        return self._frames(np.zeros(max(0, -known % (2 * HOP))), True)

    def _frames(self, more: _Floats, last: bool) -> LogitArray:
        sound = np.concatenate([self._sound, more])
        if not self._begun and len(sound) > _HALF:
            sound, self._begun = _reflected(sound, True, False), True
        known = len(sound) - _HALF * self._begun  # samples whose frames are not told
        count = max(0, (len(sound) - _SIZE) // HOP + 1) // self._chunk * self._chunk
        self._sound, out = sound[count * HOP :], []
        if last and known:
            count, self._sound = known // HOP, sound[:0]
            sound = _reflected(sound, False, True)
        logs = _logs(sound, self._mels)[:count] if count else np.zeros((0, self._mels))
        for begin in range(0, count, self._chunk):
            part = logs[begin : begin + self._chunk]
            self._loudest = max(self._loudest, part.max())
            out.append(np.maximum(part, self._loudest - _BELOW))
        return _scaled(np.concatenate([logs[:0], *out]))


def _cut_samples(samples: LogitArray) -> _Floats:
    if not np.isfinite(samples).all():
        raise InvalidOption("sound has samples that are not finite: convert the file again")
    grid = np.float64(2**_SAMPLE_BITS)
    out: _Floats = np.rint(np.clip(samples, -1, 1) * grid) / grid
    return out


def _reflected(sound: _Floats, begin: bool, end: bool) -> _Floats:
    before = sound[_HALF:0:-1] if begin else sound[:0]
    behind = sound[-2 : -_HALF - 2 : -1] if end else sound[:0]
    return np.concatenate([before, sound, behind])


def _logs(sound: _Floats, mels: int) -> _Floats:
    # Of each frame: all from the first sample on that are whole.
    frames = np.lib.stride_tricks.sliding_window_view(sound, _SIZE)[::HOP]
    power = _power(frames)
    banks, first = _banks(mels)
    total = np.zeros((len(frames), mels))
    for tap, weights in enumerate(banks.T):
        total += power[:, np.minimum(first + tap, _BINS - 1)] * weights
    return _log10(np.maximum(total, 1e-10))


def _scaled(logs: _Floats) -> LogitArray:
    out: LogitArray = ((logs + 4) / 4).astype(np.float32)
    return out


def _power(frames: _Floats) -> _Floats:
    # |DFT|^2 of frames under a Hann window, [frames, bins].
    even, odd = _folded(frames)
    (real, real_rest), (imag, imag_rest) = _tables()
    return (even @ real + even @ real_rest) ** 2 + (odd @ imag + odd @ imag_rest) ** 2


def _folded(frames: _Floats) -> tuple[_Floats, _Floats]:
    # Both halves of a frame meet the same cosines, and opposite sines.
    left, right = frames[:, 1:_HALF], frames[:, :_HALF:-1]
    even = [frames[:, :1], left + right, frames[:, _HALF : _HALF + 1]]
    return np.concatenate(even, axis=1), left - right


@lru_cache(maxsize=1)
def _tables() -> tuple[tuple[_Floats, _Floats], tuple[_Floats, _Floats]]:
    # Cosines [0.._HALF, bins] and sines [1.._HALF - 1, bins] under the window, in two parts each.
    turn = _cosines()
    place, bins = np.arange(_HALF + 1), np.arange(_BINS)
    window = 0.5 - 0.5 * turn[place]
    angles = np.outer(place, bins) % _SIZE
    cosines = window[:, None] * turn[angles]
    sines = window[1:-1, None] * turn[(angles[1:-1] - _SIZE // 4) % _SIZE]
    return _cut(cosines), _cut(sines)


def _cosines() -> _Floats:
    # Cosines of all `_SIZE` parts of a turn, each from an angle below an eighth of it.
    x = 2 * _PI / _SIZE * np.arange(_SIZE // 8 + 1)
    cosine, sine, square = np.zeros_like(x), np.zeros_like(x), x * x
    for k in range(10, 0, -1):
        sine = (sine + 1) * -square / (2 * k * (2 * k + 1))
        cosine = (cosine + 1) * -square / ((2 * k - 1) * (2 * k))
    quarter = np.concatenate([cosine + 1, (x * sine + x)[-2::-1]])  # from 0 to a quarter
    half = np.concatenate([quarter, -quarter[-2::-1]])
    return np.concatenate([half, half[-2:0:-1]])


def _cut(table: _Floats) -> tuple[_Floats, _Floats]:
    unit = 2.0**_TABLE_BITS
    high = np.rint(table * unit) / unit
    return high, np.rint((table - high) * unit**2) / unit**2


@lru_cache(maxsize=2)
def _banks(mels: int) -> tuple[_Floats, npt.NDArray[np.int64]]:
    # Weights [mels, widest] of the bins that each mel reads, and its first bin: triangles of area
    # one between neighbours on Slaney's scale, which is linear below 1000 Hz.
    top = 15 + 27 * _log10(np.array([8.0])) / _log10(np.array([6.4]))
    marks = np.arange(mels + 2) * (top / (mels + 1))
    hertz = np.where(marks < 15, marks * (200 / 3), 1000 * _power_of_ten(marks))
    bins = np.arange(_BINS) * (RATE / _SIZE)
    rise = (bins - hertz[:-2, None]) / np.diff(hertz)[:-1, None]
    fall = (hertz[2:, None] - bins) / np.diff(hertz)[1:, None]
    weights = np.maximum(0, np.minimum(rise, fall)) * (2 / (hertz[2:] - hertz[:-2]))[:, None]
    first = (weights > 0).argmax(axis=1)
    widest = int((weights > 0).sum(axis=1).max())
    padded = np.pad(weights, ((0, 0), (0, widest)))
    return np.take_along_axis(padded, first[:, None] + np.arange(widest), axis=1), first


def _power_of_ten(marks: _Floats) -> _Floats:
    # 6.4 ** ((mark - 15) / 27): the scale above 1000 Hz, by the series of the exponential.
    x = (marks - 15) / 27 * (_log10(np.array([6.4])) * _TEN) / 64
    total = np.zeros_like(x)
    for k in range(14, 0, -1):
        total = (total + 1) * x / k
    for _ in range(6):
        total = (total + 1) ** 2 - 1
    return total + 1


_TEN = 2.302585092994046  # its natural logarithm
_TWO = 0.6931471805599453


def _log10(x: _Floats) -> _Floats:
    # By the series of the inverse hyperbolic tangent.
    part, exponent = np.frexp(x)
    low = part < 0.7071067811865476
    part, exponent = np.where(low, 2 * part, part), exponent - low
    s = (part - 1) / (part + 1)
    square, total = s * s, np.zeros_like(s)
    for k in range(21, 1, -2):
        total = (total + 1 / k) * square
    out: _Floats = (exponent * _TWO + 2 * (s + s * total)) / _TEN
    return out
