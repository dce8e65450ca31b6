"""The recipe of drafters that look at a sound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from paceline.core.options import at_least
from paceline.lab.training.recipe import RATE, Recipe, Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class GadRecipe(Recipe):
    """Hyperparameters; vectors (norms, scales, slots) learn a tenth as fast as matrices."""

    steps: Steps = 2000
    batch_tokens: Annotated[int, "Tokens of the transcripts of an update.", at_least(1)] = 512
    anchors: Annotated[int, "Places per transcript to draft at (gad).", at_least(1)] = 8
    rate: Annotated[float, "Highest learning rate of matrices (Muon).", RATE] = 0.02
