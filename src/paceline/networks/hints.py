"""What a chain of a network may hear of another drafter's draft (`drafters/hints.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paceline.types import ProbArray

# Kinds of chances (`native/hints.hpp`). Of hints there is one kind more: none.
OWN = (0.1, 0.2, 0.3, 0.45, 0.6, 0.8)
HINTED = (0.15, 0.35, 0.6, 0.85)

KINDS = len(HINTED) + 2
"""Of hints."""

CELLS = (len(OWN) + 1) * KINDS
"""Pairs of kinds."""


class Hints(NamedTuple):
    """What another drafter would draft, for a chain that may follow it.

    Attributes:
        tokens: from the one behind the root on; those behind the last are unknown.
        chances: that each stands behind those before it.
        rates: how likely tokens stand that both name, the network's of two, and the hint's of two:
            float64 `[3, CELLS]`.
    """

    tokens: Sequence[int]
    chances: Sequence[float]
    rates: ProbArray
