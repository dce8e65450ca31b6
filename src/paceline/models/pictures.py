"""Pictures: decoded within limits, resized and normalised to the same bits on every machine.

Resizing is Pillow's to the last bit, in whole numbers of our own.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.core.types import IntArray, LogitArray
from paceline.errors import PromptError, RuntimeUnavailable
from paceline.models.towers import Vision
from paceline.native.blocks import GROUP

Pixels = npt.NDArray[np.uint8]

MOST_BYTES = 20 << 20
MOST_PIXELS = 16 << 20

# What a file begins with, by format.
_SIGNATURES = {"PNG": b"\x89PNG\r\n\x1a\n", "JPEG": b"\xff\xd8\xff", "WEBP": b"RIFF"}
_BITS = 22  # of a coefficient's fraction


@dataclass(frozen=True, eq=False)
class Picture:
    """What a model is shown; `pixels` are uint8 `[height, width, 3]`, red, green and blue."""

    pixels: Pixels

    @classmethod
    def open(cls, path: Path | str) -> Picture:
        """Read a file; PromptError if there is none, else as `of`."""
        try:
            with Path(path).open("rb") as file:
                data = file.read(MOST_BYTES + 1)
        except OSError as error:
            raise PromptError(f"cannot read picture {path}: {error.strerror}") from error
        return cls.of(data, str(path))

    @classmethod
    def of(
        cls,
        data: bytes,
        name: str = "the picture",
        *,
        most_bytes: int = MOST_BYTES,
        most_pixels: int = MOST_PIXELS,
    ) -> Picture:
        """Decode a PNG, JPEG or WebP file: its first frame, turned as EXIF says, over white.

        Raises:
            PromptError: it is none of these, damaged, or too large.
            RuntimeUnavailable: Pillow is not installed.
        """
        kind = next((each for each, begin in _SIGNATURES.items() if data.startswith(begin)), None)
        if kind is None or (kind == "WEBP" and data[8:12] != b"WEBP"):
            raise PromptError(f"{name} is no PNG, JPEG or WebP file: convert it to one")
        if len(data) > most_bytes:
            raise PromptError(f"{name} has more than {most_bytes} bytes: send a smaller one")
        try:
            from PIL import Image, ImageOps
        except ImportError as error:
            raise RuntimeUnavailable(
                "pictures need Pillow: pip install 'paceline[pictures]'"
            ) from error
        try:
            with Image.open(io.BytesIO(data), formats=[kind]) as image:
                width, height = image.size  # from the header: nothing is decoded yet
                if width * height > most_pixels:
                    raise Image.DecompressionBombError
                turned: Any = ImageOps.exif_transpose(image)
                return cls(_over_white(turned))
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise PromptError(
                f"{name} has more than {most_pixels} pixels: send a smaller one"
            ) from error
        except Exception as error:  # decoders raise what they like
            raise PromptError(f"{name} is damaged, or no {kind} file: save it again") from error

    def key(self, settings: bytes) -> bytes:
        """Return what tells its rows from all others, given what else they depend on."""
        digest = hashlib.sha256(repr((self.pixels.shape, settings)).encode())
        digest.update(np.ascontiguousarray(self.pixels).tobytes())
        return digest.digest()

    def patches(self, vision: Vision) -> LogitArray:
        """Return float32 `[tower.rows, n]`, as `towers.look` reads them."""
        tower = vision.tower
        size, used = tower.image, tower.grid * tower.patch
        pixels = resized(self.pixels, size, size, vision.filter)[:used, :used]
        mean, std = np.array(vision.mean), np.array(vision.std)
        levels = ((np.arange(256)[:, None] / 255 - mean) / std).astype(np.float32)
        numbers = levels[pixels, np.arange(3)]
        squares = numbers.reshape(tower.grid, tower.patch, tower.grid, tower.patch, 3)
        rows = squares.transpose(0, 2, 4, 1, 3).reshape(tower.grid**2, -1)
        more = (int(tower.class_row), 0), (0, -rows.shape[1] % GROUP)
        return np.pad(rows, more)


def _over_white(image: Any) -> Pixels:
    from PIL import Image

    if image.mode.startswith("I") or image.mode == "F":  # 16 bits: the upper eight
        deep = np.asarray(image, np.int64)
        grey = np.clip(deep >> 8 if deep.max(initial=0) > 255 else deep, 0, 255)
        return np.repeat(grey.astype(np.uint8)[..., None], 3, axis=2)
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        clear = np.asarray(image.convert("RGBA"), np.int64)
        alpha = clear[..., 3:]
        mixed = (clear[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255
        return mixed.astype(np.uint8)
    assert isinstance(image, Image.Image)
    return np.array(image.convert("RGB"), np.uint8)


def _triangle(x: float) -> float:
    return max(0.0, 1.0 - abs(x))


def _cubic(x: float) -> float:
    x, a = abs(x), -0.5
    if x < 1.0:
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * a if x < 2.0 else 0.0


def _lanczos(x: float) -> float:
    return _sinc(x) * _sinc(x / 3) if -3.0 <= x < 3.0 else 0.0


def _sinc(x: float) -> float:
    # Of our own sine: libraries differ in the last bit.
    if x == 0.0:
        return 1.0
    x *= math.pi
    turns = round(x / math.pi)
    rest = x - turns * math.pi
    term = total = rest
    for n in range(2, 26, 2):
        term *= -rest * rest / (n * (n + 1))
        total += term
    return (-total if turns % 2 else total) / x


FILTERS: dict[str, tuple[Callable[[float], float], float]] = {
    "bilinear": (_triangle, 1.0),
    "bicubic": (_cubic, 2.0),
    "lanczos": (_lanczos, 3.0),
}
"""Filters of resizing, and how far from the middle they reach."""


@lru_cache(maxsize=64)
def _coefficients(begin: int, end: int, name: str) -> tuple[IntArray, IntArray]:
    # Of `end` pixels made of `begin`: which are read, `[end, n]`, and their shares.
    function, reach = FILTERS[name]
    scale = begin / end
    stretch = max(scale, 1.0)
    support, narrow = reach * stretch, 1.0 / stretch
    most = math.ceil(support) * 2 + 1
    places, shares = np.zeros((end, most), np.int64), np.zeros((end, most), np.int64)
    for each in range(end):
        middle = (each + 0.5) * scale
        first = max(0, int(middle - support + 0.5))
        last = min(begin, int(middle + support + 0.5))
        own = [function((first + j - middle + 0.5) * narrow) for j in range(last - first)]
        total = 0.0
        for one in own:
            total += one
        for j, one in enumerate(own):
            share = (one / total if total else one) * (1 << _BITS)
            places[each, j], shares[each, j] = first + j, int(share + (0.5 if share >= 0 else -0.5))
    return places, shares


def resized(pixels: Pixels, height: int, width: int, name: str) -> Pixels:
    """Return uint8 `[height, width, 3]`, by a filter of `FILTERS`: columns first, then lines."""
    wide = _along(pixels.swapaxes(0, 1), width, name).swapaxes(0, 1)
    return np.ascontiguousarray(_along(wide, height, name))


def _along(pixels: Pixels, size: int, name: str) -> Pixels:
    if len(pixels) == size:
        return pixels
    places, shares = _coefficients(len(pixels), size, name)
    out = np.full((size, *pixels.shape[1:]), 1 << (_BITS - 1), np.int64)
    for place, share in zip(places.T, shares.T, strict=True):  # whole numbers: sums are exact
        out += pixels[place] * share[:, None, None]
    made: Pixels = np.clip(out >> _BITS, 0, 255).astype(np.uint8)
    return made
