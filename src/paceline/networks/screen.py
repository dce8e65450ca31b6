"""A screen before an LM head: which tokens are worth their logits (SVD-softmax, Shim et al. 2017).

A drafter's head weighs more than the rest of a step, and all but a few of its rows are read for
tokens that nobody would draft. A product of two thin matrices previews all logits; those of the
best few are then computed exactly, from their own rows of the head alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.types import LogitArray

REFINED = 32
"""How many logits of a row are computed exactly."""

SCREEN = ("screen.down", "screen.up")
"""Names of both matrices in files."""


@dataclass(frozen=True, slots=True)
class Screen:
    """`up (down h)` previews the logits of a hidden state h, as the LM head reads it.

    Attributes:
        down: float32 `[rank, width]`.
        up: float32 `[draft vocabulary, rank]`.
    """

    down: LogitArray
    up: LogitArray

    def tensors(self) -> dict[str, LogitArray]:
        """By the names of files."""
        return dict(zip(SCREEN, (self.down, self.up), strict=True))


def read_screen(
    tensors: Mapping[str, npt.NDArray[Any]], width: int, vocabulary: int
) -> Screen | None:
    """A screen from a file's tensors; None if they hold none that fits.

    Args:
        tensors: by the names of files.
        width: of hidden states.
        vocabulary: tokens that can be drafted.
    """
    if tensors.keys() != set(SCREEN):
        return None
    down, up = (tensors[name].astype(np.float32) for name in SCREEN)
    rank = len(down) if down.ndim else 0
    if not rank or down.shape != (rank, width) or up.shape != (vocabulary, rank):
        return None
    finite = np.isfinite(down).all() and np.isfinite(up).all()
    return Screen(down, up) if finite else None
