"""How a recogniser of words is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from paceline.core.options import at_least
from paceline.lab.training.recipe import MatrixRate, Recipe, Steps, VectorRate


@dataclass(frozen=True, slots=True, kw_only=True)
class CPPDRecipe(Recipe):
    """Of all weights."""

    steps: Steps = 2000
    batch: Annotated[int, "Words per update.", at_least(1)] = 64
    matrix_rate: MatrixRate = 0.02
    vector_rate: VectorRate = 3e-3
