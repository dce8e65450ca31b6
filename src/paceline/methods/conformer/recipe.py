"""How a conformer is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from paceline.core.options import at_least
from paceline.lab.training.recipe import MatrixRate, Steps, VectorRate
from paceline.methods.careless.recipe import ChunkRecipe


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformerRecipe(ChunkRecipe):
    """Of all weights; rows are of 40 ms."""

    steps: Steps = 800
    batch: Annotated[int, "Sounds per update.", at_least(1)] = 8
    chunks: Annotated[str, "Rows of a chunk, with commas; one of these an update."] = "1,4,14,28"
    matrix_rate: MatrixRate = 0.02
    vector_rate: VectorRate = 3e-3
