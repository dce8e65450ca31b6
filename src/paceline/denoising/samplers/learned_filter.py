"""A small network says which places are right: Learn2PD (arXiv:2509.25188)."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
from safetensors.numpy import load_file

from paceline.core.types import BoolArray, IntArray, ProbArray
from paceline.denoising.process import Choice, View, best
from paceline.denoising.unmasking import Rule
from paceline.errors import InvalidOption

NAMES = ("in.weight", "in.bias", "out.weight", "out.bias")


def features(view: View) -> ProbArray:
    """Return float64 `[block]`: largest probabilities, 1 at filled places."""
    out = np.ones(len(view.canvas.block))
    out[view.places - view.canvas.block.start] = view.confidence
    return out


class Filter(Rule):
    """Fill places that the filter takes for right with more than `tau`, and the surest."""

    name: ClassVar[str] = "filter"

    def __init__(self, weights: str, tau: float = 0.9) -> None:
        """Read a safetensors file: `in.weight` `[hidden, block]`, `in.bias`, `out.weight`
        `[block, hidden]`, `out.bias`.

        Raises:
            InvalidOption: the file is missing, or holds something else.
        """
        try:
            held = load_file(Path(weights).expanduser())
            a, b, c, d = (held[name].astype(np.float64) for name in NAMES)
            if a.shape != (len(b), len(d)) or c.shape != (len(d), len(b)):
                raise ValueError(f"shapes {a.shape} and {c.shape} do not fit")
        except Exception as error:
            raise InvalidOption(
                f"filter weights {weights} cannot be read ({error}): give "
                f"a safetensors file with {', '.join(NAMES)}"
            ) from error
        self._layers, self._size, self._tau = (a, b, c, d), len(d), tau

    def choose(self, view: View, state: None) -> Choice:
        seen = features(view)
        if len(seen) > self._size:
            raise InvalidOption(
                f"the filter is for blocks of {self._size}, not {len(seen)}: set block to "
                f"{self._size}"
            )
        a, b, c, d = self._layers
        hidden = np.maximum(a[:, : len(seen)] @ seen + a[:, len(seen) :].sum(axis=1) + b, 0)
        scores = (c @ hidden + d)[view.places - view.canvas.block.start]
        right = np.flatnonzero(scores > np.log(self._tau / (1 - self._tau)))
        return Choice(np.union1d(right, best(view.confidence)))


class Replay(Rule):
    """Fill places whose pick is that of a known answer, which makes the filter's labels.

    `examples` are float64 `[block]` features and bool `[block]`, whether the pick is right (filled
    places are).
    """

    name: ClassVar[str] = "replay"
    ignores_draws = False

    def __init__(self, answer: IntArray) -> None:
        """Bind int64 `[answer]`, tokens of the places from the canvas's begin on."""
        self._answer = answer
        self.examples: list[tuple[ProbArray, BoolArray]] = []

    def choose(self, view: View, state: None) -> Choice:
        known = self._answer[view.places - view.canvas.begin]
        right = known == view.picks
        labels = np.ones(len(view.canvas.block), dtype=np.bool_)
        labels[view.places - view.canvas.block.start] = right
        self.examples.append((features(view), labels))
        if right.any():
            return Choice(np.flatnonzero(right))
        # Nothing is right: the answer's token takes the place of the surest pick.
        [top] = best(view.confidence)
        return Choice([int(top)], edit=[(int(view.places[top]), int(known[top]))])
