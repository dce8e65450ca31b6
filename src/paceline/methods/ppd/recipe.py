"""Recipes of rows that are asked in chains: prompt tokens, and mask rows in their way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from paceline.core.options import at_least
from paceline.lab.training.recipe import (
    RATE,
    Decay,
    LossName,
    Precision,
    Recipe,
    Steps,
    check_loss,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRecipe(Recipe):
    """Hyperparameters of prompt tokens, which stand in chains at new places each time."""

    steps: Steps = 300
    depth: Annotated[int, "Prompt tokens: how far ahead they ask.", at_least(1)] = 3
    chains: Annotated[int, "Places per text to put them at.", at_least(1)] = 64
    batch_tokens: Annotated[int, "Tokens of the texts of an update.", at_least(1)] = 512
    rate: Annotated[float, "Highest learning rate.", RATE] = 1e-2
    loss: LossName = "forward-kl"
    training_precision: Precision = "bf16"
    decay: Decay = 0.8

    def __post_init__(self) -> None:
        Recipe.__post_init__(self)
        check_loss(self.loss)


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
