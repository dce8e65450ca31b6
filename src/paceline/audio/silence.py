"""Where speech is, by the network of Silero VAD (Silero Team 2024), to the same bits everywhere.

Its weights are a file of 15 tensors. Products add whole numbers, which float64 does not round: rows
are cut to 22 bits below their largest number, weights to as many as there is room for. All else is
elementwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from paceline.audio.mel import RATE
from paceline.core.types import BoolArray, LogitArray
from paceline.errors import ModelError
from paceline.models.safetensors import SafetensorsFiles

CHUNK = 512
"""Samples that have one probability."""
LEAD = RATE // 5
"""Samples before speech, which belong to it."""

_Floats = npt.NDArray[np.float64]

_CONTEXT, _FRAME, _STEP, _BINS, _WIDE = 64, 256, 128, 129, 128
_BITS = 22
_PIECE = 2048  # chunks that are convolved at once
_LOOK = 64 * CHUNK  # samples in which speech is looked for at once
_SURE, _LESS = 0.5, 0.15  # probability that begins speech; with so much less it goes on

_SHAPES = {
    "stft_conv.weight": (2 * _BINS, 1, _FRAME),
    "conv1.weight": (128, _BINS, 3),
    "conv2.weight": (64, 128, 3),
    "conv3.weight": (64, 64, 3),
    "conv4.weight": (_WIDE, 64, 3),
    "lstm_cell.weight_ih": (4 * _WIDE, _WIDE),
    "lstm_cell.weight_hh": (4 * _WIDE, _WIDE),
    "final_conv.weight": (1, _WIDE, 1),
}
_STRIDES = (1, 2, 2, 1)  # of the convolutions


def silero_file() -> Path | None:
    """Return the weights in the package silero-vad, which is not imported; None without it."""
    found = find_spec("silero_vad")
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).parent / "data" / "silero_vad_16k.safetensors"
    return path if path.is_file() else None


class SpeechFinder:
    """Finds speech in sound at `RATE`."""

    def __init__(self, path: Path) -> None:
        """Read the weights; raises ModelError if the file cannot be read, or is of another net."""
        if not path.is_file():
            raise ModelError(
                f"{path} is no file: give --silence silero_vad_16k.safetensors of the package "
                "silero-vad"
            )
        files = SafetensorsFiles(path)
        self._tables: dict[str, _Table] = {}
        for name, shape in _SHAPES.items():
            bias, plain = name.replace("weight", "bias"), name.startswith("stft")
            parts = {name: shape} if plain else {name: shape, bias: shape[:1]}
            for part, own in parts.items():
                if part not in files or files.shape(part) != own:
                    raise ModelError(
                        f"{path} has no {part} of Silero VAD for 16 kHz: give "
                        "silero_vad_16k.safetensors of the package silero-vad"
                    )
            self._tables[name] = _Table(files.read(name), None if plain else files.read(bias))

    def stream(self, sure: float = _SURE) -> SpeechStream:
        """Begin a sound that comes in pieces; `sure` is the probability that begins speech."""
        return SpeechStream(self, sure)

    def speech(self, sound: LogitArray) -> SpokenSound:
        """Return where there is speech in a sound `[n]`: it is looked for as far as is asked."""
        return SpokenSound(self.stream(), _whole(sound))

    def probabilities(self, sound: LogitArray) -> _Floats:
        """Return those of speech in each `CHUNK` of a sound `[n]`; behind its end it is silent."""
        return self.stream().probabilities(_whole(sound))

    def recur(self, chunks: _Floats, hidden: _Floats, cell: _Floats) -> Iterator[_Floats]:
        """Yield a probability `[1]` of each chunk `[n, samples]`, and change the state."""
        again, last = self._tables["lstm_cell.weight_hh"], self._tables["final_conv.weight"]
        for begin in range(0, len(chunks), _PIECE):
            for own in self._inputs(chunks[begin : begin + _PIECE]):
                gates = own + again.of(hidden)
                gates[2 * _WIDE : 3 * _WIDE] *= 2
                parts = _sigmoid(gates).reshape(4, _WIDE)
                cell[:] = parts[1] * cell + parts[0] * (2 * parts[2] - 1)
                hidden[:] = parts[3] * (2 * _sigmoid(2 * cell) - 1)
                yield _sigmoid(last.of(np.maximum(hidden, 0)))

    def _inputs(self, chunks: _Floats) -> _Floats:
        # What the recurrent layer reads of chunks [n, samples].
        whole = np.concatenate([chunks, chunks[:, -2 : -_CONTEXT - 2 : -1]], axis=1)
        frames = np.lib.stride_tricks.sliding_window_view(whole, _FRAME, axis=1)[:, ::_STEP]
        waves = self._tables["stft_conv.weight"].of(frames)
        rows = np.sqrt(waves[..., :_BINS] ** 2 + waves[..., _BINS:] ** 2)
        for number, stride in enumerate(_STRIDES, 1):
            around = np.pad(rows, ((0, 0), (1, 1), (0, 0)))
            taps = [around[:, tap : tap + rows.shape[1] : stride] for tap in range(3)]
            made = self._tables[f"conv{number}.weight"].of(np.concatenate(taps, axis=2))
            rows = np.maximum(made, 0)
        return self._tables["lstm_cell.weight_ih"].of(rows[:, 0])


class SpeechStream:
    """Finds speech in a sound that comes in pieces: as much as in the whole of it."""

    def __init__(self, finder: SpeechFinder, sure: float) -> None:
        self._finder, self._sure = finder, sure
        self._rest = np.zeros(_CONTEXT)  # samples before the next chunk, and those of it
        self._state = np.zeros(_WIDE), np.zeros(_WIDE)
        self._said = False

    def feed(self, samples: LogitArray) -> BoolArray:
        """Take float32 `[n]`; return for each `CHUNK` that is whole whether there is speech."""
        found = self.probabilities(samples)
        speech = np.zeros(len(found), np.bool_)
        for at, each in enumerate(found):
            self._said = bool(each >= self._sure - (_LESS if self._said else 0))
            speech[at] = self._said
        return speech

    def probabilities(self, samples: LogitArray) -> _Floats:
        """Take float32 `[n]`; return the probability of speech in each `CHUNK` that is whole."""
        rest = np.concatenate([self._rest, samples.astype(np.float64)])
        count = (len(rest) - _CONTEXT) // CHUNK
        self._rest = rest[count * CHUNK :]
        if not count:
            return np.zeros(0)
        chunks = np.lib.stride_tricks.sliding_window_view(rest, _CONTEXT + CHUNK)[::CHUNK]
        return np.concatenate([*self._finder.recur(chunks, *self._state)])


class SpokenSound:
    """Where there is speech in a whole sound; what nobody has asked for is not looked at."""

    def __init__(self, stream: SpeechStream, sound: LogitArray) -> None:
        self._stream, self._sound = stream, sound
        self._found: BoolArray = np.zeros(0, np.bool_)

    def begin(self, at: int) -> int | None:
        """Return as `begin_of_speech`."""
        while True:
            known, begin = len(self._found) * CHUNK, begin_of_speech(self._found, at)
            if begin is not None or known >= len(self._sound):
                return begin
            more = self._stream.feed(self._sound[known : known + _LOOK])
            self._found = np.concatenate([self._found, more])


def begin_of_speech(speech: BoolArray, at: int) -> int | None:
    """Return the sample from which on to hear, at or behind another; None if no speech follows."""
    first = at // CHUNK
    found = np.flatnonzero(speech[first:])
    return max(at, int(first + found[0]) * CHUNK - LEAD) if len(found) else None


def _whole(sound: LogitArray) -> LogitArray:
    return np.pad(sound, (0, -len(sound) % CHUNK))


class _Table:
    # Weights [outputs, inputs], or of taps [outputs, inputs, taps], as whole numbers, for products
    # without rounding; and the bias.

    def __init__(self, weights: LogitArray, bias: LogitArray | None) -> None:
        wide: _Floats = weights.astype(np.float64)
        wide = np.moveaxis(wide, 2, 1).reshape(len(wide), -1) if wide.ndim == 3 else wide
        most = float(np.abs(wide).sum(axis=1).max())
        self._bits = 52 - _BITS - math.frexp(most)[1]
        self._whole = np.rint(np.ldexp(wide, self._bits)).T
        self._bias = 0 if bias is None else bias.astype(np.float64)

    def of(self, rows: _Floats) -> _Floats:
        _, size = np.frexp(np.abs(rows).max(axis=-1, keepdims=True))
        cut = np.rint(np.ldexp(rows, _BITS - size))
        made: _Floats = np.ldexp(cut @ self._whole, size - _BITS - self._bits)
        return made + self._bias


def _sigmoid(x: _Floats) -> _Floats:
    # By the series of the exponential of a sixteenth of what powers of two leave.
    x = -np.clip(x, -40, 40)
    whole = np.rint(x / math.log(2))
    rest, power = (x - whole * math.log(2)) / 16, np.zeros_like(x)
    for k in range(7, -1, -1):
        power = power * rest + 1 / math.factorial(k)
    for _ in range(4):
        power *= power
    return 1 / (1 + np.ldexp(power, whole.astype(np.int32)))
