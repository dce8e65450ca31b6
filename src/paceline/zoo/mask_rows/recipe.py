"""Recipe of mask rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from paceline.core.options import at_least
from paceline.training.recipe import RATE, Steps
from paceline.zoo.ppd.recipe import PromptRecipe


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskRecipe(PromptRecipe):
    """Hyperparameters of mask rows; a chain is a group of `depth` masks, which see each other."""

    steps: Steps = 2000
    depth: Annotated[int, "Masks of a group: how far ahead they draft.", at_least(1)] = 3
    rank: Annotated[int, "Rank of the adapter.", at_least(1)] = 32
    chains: Annotated[int, "Places per text to put groups at.", at_least(1)] = 24
    batch_tokens: Annotated[int, "Tokens of the texts of an update.", at_least(1)] = 768
    rate: Annotated[float, "Highest learning rate of the adapter.", RATE] = 2e-3
    mask_rate: Annotated[float, "Of the mask embedding.", RATE] = 1e-2
