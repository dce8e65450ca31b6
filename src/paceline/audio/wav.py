"""WAV files and streams as blocks of samples: whole numbers of 8 to 32 bits, and floats."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from io import BytesIO
from itertools import chain
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.errors import InvalidOption

_LOG = logging.getLogger(__name__)

Samples = npt.NDArray[np.float64]
"""Numbers from -1 to 1, `[samples, channels]`."""

HEAD = 12
"""Bytes that tell a WAV file."""

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_CHUNKS = 1000  # before the samples: an endless stream may have nothing else
_ENDLESS = 0x7FFFF000  # sizes from here on are those of writers that knew no size
_BLOCK = 1 << 20  # bytes that are read at once


class Sound(NamedTuple):
    """A sound that is read block by block; `rate` is in samples a second."""

    rate: int
    blocks: Iterator[Samples]


class Coded(Exception):
    """The samples are in a code, such as that of telephones, which is not read here."""


def is_wav(head: bytes) -> bool:
    return head[:4] in (b"RIFF", b"RF64") and head[8:HEAD] == b"WAVE"


def wav_sound(file: BinaryIO, name: str, live: float | None = None) -> Sound:
    """Read the chunks behind the first `HEAD` bytes, up to the samples.

    Of a sound that comes `live`, so many seconds are read at once.

    Raises:
        Coded: see there.
        InvalidOption: the file is damaged.
    """
    form = b""
    for _ in range(_CHUNKS):
        chunk = file.read(8)
        if len(chunk) < 8 or not chunk[:4].isascii() or not chunk[:4].decode().isprintable():
            break
        size = int.from_bytes(chunk[4:], "little")
        if chunk[:4] == b"data":
            return _samples(file, name, form, size, live)
        content = _skip(file, size + size % 2)
        form = content if chunk[:4] == b"fmt " else form
    raise damaged(name, "it has no samples")


def damaged(name: str, why: str) -> InvalidOption:
    return InvalidOption(f"{name} is damaged ({why}): copy or record it again")


def _skip(file: BinaryIO, size: int) -> bytes:
    # The first bytes of those that are read over.
    first = file.read(min(size, 64))
    left = size - len(first)
    while left > 0 and (read := file.read(min(left, _BLOCK))):
        left -= len(read)
    return first


def _samples(file: BinaryIO, name: str, form: bytes, size: int, live: float | None) -> Sound:
    if len(form) < 16:
        raise damaged(name, "it does not say how its samples are written")
    code, channels, rate, _, step, bits = struct.unpack("<HHIIHH", form[:16])
    if code == _EXTENSIBLE:
        code = int.from_bytes(form[24:26], "little")
    if code not in (_PCM, _FLOAT):
        raise Coded(f"samples are in code {code}")
    width = -(-bits // 8)
    known = (1, 2, 3, 4) if code == _PCM else (4, 8)
    if not channels or width not in known or step != width * channels:
        raise damaged(name, f"{channels} channels of {bits} bits in {step} bytes")
    block = _BLOCK if live is None else round(live * rate) * step
    return Sound(rate, _blocks(file, name, step, channels, code == _FLOAT, size, block))


def raw_sound(head: bytes, file: BinaryIO, name: str, rate: int, live: float) -> Sound:
    """Read 16-bit numbers, little-endian, of one channel, behind the first ones, as they come."""
    block = round(live * rate) * 2
    parts = (_blocks(each, name, 2, 1, False, 0, block) for each in (BytesIO(head), file))
    return Sound(rate, chain.from_iterable(parts))


def _blocks(
    file: BinaryIO, name: str, step: int, channels: int, floats: bool, size: int, block: int
) -> Iterator[Samples]:
    left = size if 0 < size < _ENDLESS else None
    most = max(block // step, 1) * step
    while left != 0:
        wanted = most if left is None else min(most, left)
        raw = file.read(wanted)
        if whole := raw[: len(raw) // step * step]:
            width = step // channels
            numbers = np.frombuffer(whole, f"<f{width}") if floats else _whole(whole, width)
            yield numbers.astype(np.float64).reshape(-1, channels)
        left = left if left is None else left - len(raw)
        if len(raw) < wanted:
            break
    if left:
        _LOG.warning(
            "%s is cut short: %d bytes of its sound are missing; the others are heard", name, left
        )


def _whole(raw: bytes, width: int) -> Samples:
    # Numbers of 8 bits have no sign.
    if width == 1:
        return (np.frombuffer(raw, np.uint8).astype(np.float64) - 128) / 128
    codes = np.frombuffer(raw, np.uint8).reshape(-1, width)
    wide = np.zeros((len(codes), 4), np.uint8)
    wide[:, 4 - width :] = codes
    return wide.reshape(-1).view("<i4").astype(np.float64) / 2.0**31
