"""Sound files and streams as samples at the rate of models."""

from __future__ import annotations

import math
import os
import stat
import sys
from collections.abc import Iterator
from io import BytesIO, UnsupportedOperation
from pathlib import Path
from typing import BinaryIO

import numpy as np

from paceline.audio.decoders import coded_sound, mp3_frame
from paceline.audio.mel import RATE
from paceline.audio.resample import Resampler
from paceline.audio.wav import (
    HEAD,
    Coded,
    Samples,
    Sound,
    damaged,
    is_wav,
    raw_sound,
    wav_sound,
)
from paceline.core.types import LogitArray
from paceline.errors import InvalidOption

_RATES = range(1_000, 768_001)  # samples a second that may hold speech
LONGEST = 12 * 3600
"""Seconds of sound, unless fewer are asked for."""

_LIVE = 0.05  # seconds that are read at once of a sound that comes
_CONTAINERS = {
    "ogg": b"OggS",
    "flac": b"fLaC",
    "mp3": b"ID3",
    "webm": b"\x1aE\xdf\xa3",
    "mp4": b"ftyp",
}
_STREAM = 256 << 20  # bytes of a stream that is no WAV, which is held whole


class TooLong(InvalidOption):
    """A sound lasts longer than was asked for, or a stream than can be held."""


def read_sound(source: Path | BinaryIO, longest: float = LONGEST) -> LogitArray:
    """Return float32 samples at `RATE`, the mean of all channels; `-` is standard input.

    Numbers beyond -1 and 1 are clipped. A WAV file that is cut short gives what it has, and the
    log says so.

    Raises InvalidOption, which names the file: it cannot be read, is damaged, holds no samples or
    some that are not finite, has a rate of no speech, or lasts more than `longest` seconds, which
    is TooLong.
    """
    if not isinstance(source, Path):
        return _heard(_sound(source, "the sound"), "the sound", longest)
    name = "standard input" if str(source) == "-" else str(source)
    try:
        with standard_input() if str(source) == "-" else source.open("rb") as file:
            return _heard(_sound(file, name), name, longest)
    except OSError as error:
        raise InvalidOption(
            f"{name} cannot be read ({error.strerror or error}): give a sound file, or - for "
            "standard input"
        ) from error


def standard_input() -> BinaryIO:
    """Return it anew: Python waits at its end for the lock of `sys.stdin`, which a reader holds."""
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except UnsupportedOperation:
        return BytesIO(sys.stdin.buffer.read())


def live_sound(file: BinaryIO, rate: int = RATE) -> Iterator[LogitArray]:
    """Yield float32 samples at `RATE` as they come: of a WAV stream, or else of raw numbers.

    Those are of 16 bits, little-endian, of one channel, `rate` a second. The end may be far.

    Raises InvalidOption as `read_sound`, and for streams in other containers.
    """
    name, head = "standard input", file.read(HEAD)
    coded = [kind for kind, mark in _CONTAINERS.items() if mark in head]
    if not coded and (size := mp3_frame(head)):  # numbers may begin so, too
        head += file.read((size + 3) // 2 * 2 - HEAD)
        coded = ["mp3"] if head[size : size + 2] == head[:2] else []
    if coded:
        raise InvalidOption(f"{name} is {coded[0]}: convert it, for example by ffmpeg -f wav -")
    try:
        whole = is_wav(head)
        sound = wav_sound(file, name, _LIVE) if whole else raw_sound(head, file, name, rate, _LIVE)
        yield from _resampled(sound, name, math.inf, live=True)
    except Coded as error:
        raise InvalidOption(f"{name} cannot be read ({error}): give raw numbers") from error
    except OSError as error:
        raise InvalidOption(f"{name} cannot be read ({error.strerror or error})") from error


def _sound(file: BinaryIO, name: str) -> Sound:
    head = file.read(HEAD)
    if not head:
        raise damaged(name, "it is empty")
    why, whole = "it is no WAV file", _is_file(file)
    if is_wav(head):
        try:
            return wav_sound(file, name)
        except Coded as error:
            why = str(error)
            if not whole:
                raise InvalidOption(f"{name} cannot be read ({why}): give it as a file") from error
    if whole:
        return coded_sound(file, name, why)
    rest = file.read(_STREAM)
    if len(rest) == _STREAM:
        raise TooLong(
            f"{name} has more than {_STREAM >> 20} MiB that are no WAV: give a file of sound"
        )
    return coded_sound(BytesIO(head + rest), name, why)


def _is_file(file: BinaryIO) -> bool:
    # Pipes and devices may have no end, and cannot be read twice.
    if isinstance(file, BytesIO):
        return True
    try:
        return stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except OSError:
        return False


def _heard(sound: Sound, name: str, longest: float) -> LogitArray:
    return np.concatenate([*_resampled(sound, name, longest)])


def _resampled(sound: Sound, name: str, longest: float, live: bool = False) -> Iterator[LogitArray]:
    if sound.rate not in _RATES:
        raise InvalidOption(
            f"{name} says that it has {sound.rate} samples a second, and speech is heard at "
            f"{_RATES.start} to {_RATES.stop - 1}: mend its header"
        )
    resampler = None
    if sound.rate != RATE:
        resampler = Resampler(sound.rate, 1) if live else Resampler(sound.rate)
    length = 0
    for block in sound.blocks:
        length += len(block)
        if length > longest * sound.rate:
            raise TooLong(f"{name} lasts more than {longest:g} s: give it in parts")
        mixed = _mixed(block, name)
        yield mixed.astype(np.float32) if resampler is None else resampler.feed(mixed)
    if resampler is not None:
        yield resampler.end()
    if not length:
        raise damaged(name, "it has no samples")


def _mixed(block: Samples, name: str) -> Samples:
    # Sums of numbers with so many bits are exact, in whatever order.
    if not np.isfinite(block).all():
        raise InvalidOption(f"{name} has samples that are not finite: convert it again")
    grid = 2.0**31
    mixed: Samples = np.rint(np.clip(block, -1, 1) * grid).sum(axis=1)
    mixed /= grid * block.shape[1]
    return mixed
