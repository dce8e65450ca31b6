"""Sound in other files than WAV, by packages that are optional: soundfile, and PyAV behind it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, BinaryIO

import numpy as np

from paceline.audio.wav import Samples, Sound
from paceline.errors import InvalidOption

_BLOCK = 1 << 16  # samples that are read at once
# Thousands of bits a second of a frame of mp3, of MPEG 1 and of the later ones.
_KILOBITS = (
    (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
)


def coded_sound(file: BinaryIO, name: str, why: str) -> Sound:
    """Read flac, ogg, mp3, opus with soundfile, what that does not know with PyAV.

    Args:
        file: can be sought in.
        name: of the file, for errors.
        why: it is not read without a package.

    Raises:
        InvalidOption: no package that is installed reads it.
    """
    missing = ""
    for package, read, more in _PACKAGES:
        file.seek(0)
        try:
            return read(file, name)
        except ImportError:
            why += f"; {package} is not installed"
            missing += f"{more}, or "
        except Exception as error:  # each library has errors of its own
            # Without the object that it was given, or its number and path.
            said = getattr(error, "error_string", None) or getattr(error, "strerror", None)
            said = str(said or error).strip().rstrip(".")
            why += f"; {package} says: {said}"
    raise InvalidOption(f"{name} cannot be read ({why}): {missing}convert it to WAV")


def mp3_frame(head: bytes) -> int:
    """Return how many bytes a frame of MPEG's layer III has that begins so; 0 if none does."""
    if len(head) < 3 or head[0] != 0xFF or head[1] & 0xE6 != 0xE2 or head[1] & 0x18 == 8:
        return 0
    first, (rate, bits) = head[1] & 0x18 == 0x18, (head[2] >> 2 & 3, head[2] >> 4)
    if rate == 3 or not 0 < bits < 15:
        return 0
    slower = 1 if first else 2 if head[1] & 0x10 else 4
    size = (144 if first else 72) * 1000 * _KILOBITS[not first][bits - 1]
    return size * slower // (44_100, 48_000, 32_000)[rate] + (head[2] >> 1 & 1)


def _by_soundfile(file: BinaryIO, name: str) -> Sound:
    import soundfile

    opened = soundfile.SoundFile(file)
    blocks = opened.blocks(_BLOCK, dtype="float32", always_2d=True)
    return Sound(opened.samplerate, _guarded(blocks, name))


def _by_av(file: BinaryIO, name: str) -> Sound:
    import av

    container = av.open(file)
    if not container.streams.audio:
        raise ValueError("it has no sound")
    stream = container.streams.audio[0]
    planes = av.AudioResampler(format="fltp")

    def blocks() -> Iterator[Samples]:
        for frame in chain(container.decode(stream), [None]):
            for part in planes.resample(frame):
                yield part.to_ndarray().T

    return Sound(stream.rate, _guarded(blocks(), name))


_PACKAGES = (
    ("soundfile", _by_soundfile, "pip install 'paceline[audio]' for flac, ogg, mp3, opus"),
    ("av", _by_av, "pip install av for m4a, mp4 and webm"),
)


def _guarded(blocks: Iterator[Any], name: str) -> Iterator[Samples]:
    # Errors inside of a file name it.
    try:
        for block in blocks:
            yield np.asarray(block, dtype=np.float64)
    except Exception as error:
        raise InvalidOption(
            f"{name} is damaged ({str(error).strip()}): copy or convert it again"
        ) from error
