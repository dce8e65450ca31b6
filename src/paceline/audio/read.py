"""Sound files as samples: WAV by the standard library."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import BinaryIO

import numpy as np

from paceline.audio.mel import RATE
from paceline.core.types import LogitArray
from paceline.errors import InvalidOption


def read_sound(path: Path | BinaryIO) -> LogitArray:
    """Return float32 samples at `RATE`, the mean of all channels.

    Raises InvalidOption if the file cannot be read, or is not of 16 kHz.
    """
    try:
        with wave.open(str(path) if isinstance(path, Path) else path, "rb") as file:
            width, rate, channels = file.getsampwidth(), file.getframerate(), file.getnchannels()
            raw = file.readframes(file.getnframes())
    except (OSError, EOFError, wave.Error) as error:
        raise InvalidOption(f"cannot read {path} ({error}): give a WAV file") from error
    if rate != RATE:
        raise InvalidOption(
            f"{path} has {rate} samples a second: convert it to {RATE} (`ffmpeg -ar {RATE}`)"
        )
    whole = raw[: len(raw) // (width * channels) * width * channels]
    out: LogitArray = _samples(whole, width).reshape(-1, channels).mean(axis=1, dtype=np.float32)
    return out


def _samples(raw: bytes, width: int) -> LogitArray:
    # Numbers of 8 bits have no sign.
    if width == 1:
        return (np.frombuffer(raw, np.uint8).astype(np.float32) - 128) / np.float32(128)
    codes = np.frombuffer(raw, np.uint8).reshape(-1, width)
    wide = np.zeros((len(codes), 4), np.uint8)
    wide[:, 4 - width :] = codes
    whole = wide.reshape(-1).view("<i4").astype(np.float64)
    return (whole / 2.0**31).astype(np.float32)
