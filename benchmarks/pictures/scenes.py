"""Drawn pictures with questions and answers: all that is asked is known, and none is lacking.

Up to four shapes stand in a grid of 3 x 3 places. An eighth of the pairs of a colour and a shape is
in no scene but those that are held out, which have one each.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import cos, pi, sin
from typing import NamedTuple

import numpy as np

from paceline.models.pictures import Pixels

COLOURS = {
    "red": (214, 40, 40),
    "green": (40, 160, 60),
    "blue": (40, 80, 210),
    "yellow": (245, 215, 40),
    "orange": (245, 140, 30),
    "purple": (130, 50, 160),
    "black": (20, 20, 20),
    "white": (250, 250, 250),
}
_BAR = 0.35  # half the width of a cross's bars, of its radius
_STAR = 0.42  # from the middle of a star to its inner corners
_RING = 0.35  # width of a ring

# Corners on the unit disc, from the top on; a ring is drawn as a line.
SHAPES: dict[str, list[tuple[float, float]]] = {
    "circle": [(sin(pi * k / 32), -cos(pi * k / 32)) for k in range(64)],
    "square": [(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)],
    "triangle": [(0.0, -1.0), (0.95, 0.8), (-0.95, 0.8)],
    "cross": [
        (x * (1 if wide else _BAR), y * (_BAR if wide else 1))
        for x, y, wide in (
            *((-1, -1, False), (1, -1, False)),
            *((1, -1, True), (1, 1, True)),
            *((1, 1, False), (-1, 1, False)),
            *((-1, 1, True), (-1, -1, True)),
        )
    ],
    "star": [
        (r * sin(pi * k / 5), -r * cos(pi * k / 5)) for k in range(10) for r in [(1, _STAR)[k % 2]]
    ],
    "ring": [],
}
PLACES = (
    *("at the top left", "at the top", "at the top right"),
    *("on the left", "in the middle", "on the right"),
    *("at the bottom left", "at the bottom", "at the bottom right"),
)
_NUMBERS = ("no", "one", "two", "three", "four")
_PAIRS = tuple(product(COLOURS, SHAPES))
_UNSEEN = frozenset(
    (colour, shape)
    for (c, colour), (s, shape) in product(enumerate(COLOURS), enumerate(SHAPES))
    if (c + 3 * s) % 8 == 0
)


class Thing(NamedTuple):
    """A shape in a picture; `place` is an index of `PLACES`."""

    colour: str
    shape: str
    place: int

    @property
    def name(self) -> str:
        return f"{self.colour} {self.shape}"


class Scene(NamedTuple):
    """A picture, uint8 `[size, size, 3]`, and what is in it by places."""

    pixels: Pixels
    things: tuple[Thing, ...]


def draw(rng: np.random.Generator, size: int, *, held_out: bool = False) -> Scene:
    """Draw a scene, a function of the generator's state; `size` is of a side in pixels."""
    places = np.sort(rng.permutation(len(PLACES))[: rng.integers(1, len(_NUMBERS))])
    seen = [pair for pair in _PAIRS if pair not in _UNSEEN]
    pairs = [seen[k] for k in rng.permutation(len(seen))[: len(places)]]
    if held_out:
        pairs[rng.integers(len(pairs))] = sorted(_UNSEEN)[rng.integers(len(_UNSEEN))]
    things = tuple(Thing(*pair, int(p)) for pair, p in zip(pairs, places, strict=True))
    return Scene(_drawn(rng, things, size), things)


def _drawn(rng: np.random.Generator, things: tuple[Thing, ...], size: int) -> Pixels:
    from PIL import Image, ImageDraw

    big = 2 * size  # for smooth edges
    image = Image.new("RGB", (big, big), _near(rng, (int(rng.integers(90, 200)),) * 3))
    canvas = ImageDraw.Draw(image)
    for each in things:
        radius = float(rng.uniform(0.09, 0.155)) * big
        line, column = divmod(each.place, 3)
        room = big / 6 - radius
        x, y = ((k + 0.5) * big / 3 + float(rng.uniform(-1, 1)) * room for k in (column, line))
        fill = _near(rng, COLOURS[each.colour])
        if corners := SHAPES[each.shape]:
            canvas.polygon([(x + radius * a, y + radius * b) for a, b in corners], fill=fill)
        else:
            box = (x - radius, y - radius, x + radius, y + radius)
            canvas.ellipse(box, outline=fill, width=round(radius * _RING))
    return np.asarray(image.reduce(2), np.uint8)


def _near(rng: np.random.Generator, colour: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(np.clip(np.array(colour) + rng.integers(-15, 16, 3), 0, 255).tolist())


class Question(NamedTuple):
    """What is asked about a scene: its kind, a key of `KINDS`, and both texts."""

    kind: str
    asked: str
    answer: str


Asking = Callable[[np.random.Generator, tuple[Thing, ...]], tuple[str, str]]


def _colour(rng: np.random.Generator, things: tuple[Thing, ...]) -> tuple[str, str]:
    shapes = [each.shape for each in things]
    one = _one(rng, [each for each in things if shapes.count(each.shape) == 1])
    return f"What colour is the {one.shape}?", f"The {one.shape} is {one.colour}."


def _shape(rng: np.random.Generator, things: tuple[Thing, ...]) -> tuple[str, str]:
    colours = [each.colour for each in things]
    one = _one(rng, [each for each in things if colours.count(each.colour) == 1])
    return f"Which shape is {one.colour}?", f"The {one.shape} is {one.colour}."


def _place(rng: np.random.Generator, things: tuple[Thing, ...]) -> tuple[str, str]:
    one = _one(rng, things)
    return f"Where is the {one.name}?", f"The {one.name} is {PLACES[one.place]}."


def _what(rng: np.random.Generator, things: tuple[Thing, ...]) -> tuple[str, str]:
    one = _one(rng, things)
    return f"What is {PLACES[one.place]}?", f"A {one.name} is {PLACES[one.place]}."


def _count(rng: np.random.Generator, things: tuple[Thing, ...]) -> tuple[str, str]:
    return "How many shapes are there?", _counted(things)


def _counted(things: tuple[Thing, ...]) -> str:
    one = len(things) == 1
    return f"There {'is' if one else 'are'} {_NUMBERS[len(things)]} shape{'' if one else 's'}."


def _side(rng: np.random.Generator, things: tuple[Thing, ...]) -> tuple[str, str]:
    first, second = (things[k] for k in rng.permutation(len(things))[:2])
    by = int(rng.integers(2))  # lines, or columns
    mine, theirs = (divmod(each.place, 3)[by] for each in (first, second))
    if mine == theirs:
        raise _Nothing
    less, more = (("above", "below"), ("left of", "right of"))[by]
    said = (less, more)[int(rng.integers(2))]
    right = (said == less) == (mine < theirs)
    return f"Is the {first.name} {said} the {second.name}?", "Yes." if right else "No."


def _describe(rng: np.random.Generator, things: tuple[Thing, ...]) -> tuple[str, str]:
    listed = (f"The {each.name} is {PLACES[each.place]}." for each in things)
    return "Describe the picture.", " ".join([_counted(things), *listed])


KINDS: dict[str, Asking] = {
    "colour": _colour,
    "shape": _shape,
    "place": _place,
    "what": _what,
    "count": _count,
    "side": _side,
    "describe": _describe,
}


class _Nothing(Exception):
    """A scene has nothing that can be asked so."""


def _one(rng: np.random.Generator, things: tuple[Thing, ...] | list[Thing]) -> Thing:
    if not things:
        raise _Nothing
    return things[rng.integers(len(things))]


def ask(rng: np.random.Generator, scene: Scene, kind: str) -> Question | None:
    """Return a question of a kind, or None if the scene gives none."""
    try:
        return Question(kind, *KINDS[kind](rng, scene.things))
    except (_Nothing, ValueError):
        return None
