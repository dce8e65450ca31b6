"""A small network says which places are right: Learn2PD (arXiv:2509.25188)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from safetensors.numpy import load_file

from paceline.core.options import File, require
from paceline.core.types import ProbArray
from paceline.denoising.process import Decision, Terms, View, best
from paceline.denoising.unmasking import Rule
from paceline.errors import InvalidOption
from paceline.weights import weight_files

SHIPPED = File("lists-mdm")
NAMES = ("in.weight", "in.bias", "out.weight", "out.bias")


def _read(weights: str) -> dict[str, Any]:
    if weights == SHIPPED:
        return load_file(next(weight_files(f"denoisers/canvas-filter-{SHIPPED}.safetensors")))
    return load_file(Path(weights).expanduser())


def features(view: View) -> ProbArray:
    """Return float64 `[block]`: largest probabilities, 1 at filled places."""
    out = np.ones(len(view.canvas.block))
    out[view.places - view.canvas.block.start] = view.confidence
    return out


class Filter(Rule):
    """Fill places that the filter takes for right with more than `tau`, and the surest."""

    name: ClassVar[str] = "filter"
    requires = "a denoiser; weights trained for it, those of lists-mdm by default"
    paper = "after Learn2PD, Bao et al. 2025, arXiv:2509.25188"

    def __init__(self, weights: File = SHIPPED, tau: float = 0.9) -> None:
        """Read a safetensors file: `in.weight` `[hidden, block]`, `in.bias`, `out.weight`
        `[block, hidden]`, `out.bias`.

        Args:
            weights: the file, or "lists-mdm" for the one in the package.
            tau: least chance that a pick is right.

        Raises:
            InvalidOption: the file is missing, or holds something else.
        """
        require(0 <= tau < 1, "tau", tau, "0 or more, and below 1")
        try:
            held = _read(weights)
            a, b, c, d = (held[name].astype(np.float64) for name in NAMES)
            if a.shape != (len(b), len(d)) or c.shape != (len(d), len(b)):
                raise ValueError(f"shapes {a.shape} and {c.shape} do not fit")
        except Exception as error:
            raise InvalidOption(
                f"filter weights {weights} cannot be read ({error}): give "
                f"a safetensors file with {', '.join(NAMES)}"
            ) from error
        self._layers, self._size = (a, b, c, d), len(d)
        self._bound = np.log(tau / (1 - tau)) if tau else -np.inf
        self._shipped = weights == SHIPPED

    def check(self, terms: Terms) -> None:
        if terms.block > self._size:
            raise InvalidOption(
                f"the filter is for blocks of {self._size} places, not {terms.block}: set block to "
                f"{self._size} or less"
            )
        if self._shipped and terms.facts.attention != "full":
            raise InvalidOption(
                f"the filter in the package was trained for {SHIPPED}, whose rows see all: train "
                "one with `paceline train canvas-filter` and give filter:weights=FILE"
            )

    def choose(self, view: View, state: None) -> Decision:
        seen = features(view)
        a, b, c, d = self._layers
        hidden = np.maximum(a[:, : len(seen)] @ seen + a[:, len(seen) :].sum(axis=1) + b, 0)
        scores = (c @ hidden + d)[view.places - view.canvas.block.start]
        right = np.flatnonzero(scores > self._bound)
        return Decision(np.union1d(right, best(view.confidence)))
