"""Words drawn as pictures, in some fonts, for a recogniser to learn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from paceline.core.types import IntArray
from paceline.errors import InvalidOption
from paceline.methods.cppd.recogniser import COLUMN, HEIGHT, LONGEST, WIDTH, Pictures

_LARGE = 40  # points, before a word is made as small as its picture


def words_of(text: str) -> list[str]:
    """Return the different words of a text that a recogniser can spell, sorted."""
    found = set(re.findall(r"[0-9a-z]+", text.casefold()))
    return sorted(each for each in found if len(each) <= LONGEST)


def apart(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return those that are learnt, and every twentieth, which is held out."""
    return [each for at, each in enumerate(words, 1) if at % 20], list(words[19::20])


def load_fonts(files: Sequence[Path]) -> list[ImageFont.FreeTypeFont]:
    """Open TrueType and OpenType fonts; InvalidOption if one is none."""
    try:
        return [ImageFont.truetype(each, _LARGE) for each in files]
    except OSError as error:
        raise InvalidOption(f"a font cannot be read ({error}): leave it out") from error


class Drawn(NamedTuple):
    """Pictures of words; int64 `[n, WIDTH // COLUMN]`, the place that stands in a column.

    Behind a word that is the end's; -1 before it.
    """

    pictures: Pictures
    places: IntArray


def draw(
    word: str, font: ImageFont.FreeTypeFont, rng: np.random.Generator
) -> tuple[Pictures, IntArray]:
    """Draw a word, which is cut close, as a detector does; it begins near the left edge.

    Drawn are case, angle, size, contrast and noise.
    """
    word = (word, word.capitalize(), word.upper())[rng.integers(3)]
    left, top, right, bottom = map(int, font.getbbox(word))
    ink = Image.new("L", (right - left + 8, bottom - top + 8))
    ImageDraw.Draw(ink).text((4 - left, 4 - top), word, fill=255, font=font)
    begins = np.array([font.getlength(word[:at]) for at in range(len(word) + 1)]) + 4 - left
    turned = ink.rotate(rng.uniform(-3, 3), Image.Resampling.BICUBIC, expand=True)
    high = round(HEIGHT * rng.uniform(0.8, 1.0))
    wide = round(turned.width * high / turned.height * rng.uniform(0.8, 1.2))
    wide = max(1, min(WIDTH, wide))
    page = Image.new("L", (WIDTH, HEIGHT))
    x, y = (int(rng.integers(1 + n)) for n in (min(8, WIDTH - wide), HEIGHT - high))
    page.paste(turned.resize((wide, high), Image.Resampling.BILINEAR), (x, y))
    if rng.random() < 0.5:
        page = ImageOps.invert(page)
    dark, light = rng.uniform(0, 80), rng.uniform(150, 255)
    grey = np.asarray(page, np.float64) / 255 * (light - dark) + dark
    grey += rng.normal(0, rng.uniform(0, 12), grey.shape)
    # The angle is so small that what stands side by side moves with the middle alone.
    begins = (begins + (turned.width - ink.width) / 2) * wide / turned.width + x
    middles = np.arange(COLUMN / 2, WIDTH, COLUMN)
    return grey.clip(0, 255).astype(np.uint8), np.searchsorted(begins, middles, "right") - 1


def drawn(
    words: Sequence[str], fonts: Sequence[ImageFont.FreeTypeFont], seed: Sequence[int]
) -> Drawn:
    """Draw words, each in one of some fonts; a function of the seed."""
    rng = np.random.default_rng(seed)
    found = [draw(each, fonts[int(rng.integers(len(fonts)))], rng) for each in words]
    return Drawn(*map(np.stack, zip(*found, strict=True)))
