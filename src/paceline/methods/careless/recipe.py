"""How what hears chunk by chunk is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from paceline.core.options import at_least, require
from paceline.lab.training.recipe import RATE, Recipe, Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRecipe(Recipe):
    """Of a network of several lengths of a chunk, of which an update draws one."""

    chunks: Annotated[str, "Rows of a chunk, with commas; one of these an update."] = "1"

    def __post_init__(self) -> None:
        Recipe.__post_init__(self)
        allowed = all(each.isdecimal() and int(each) > 0 for each in self.chunks.split(","))
        require(allowed, "chunks", self.chunks, "numbers of rows, such as 15,25,50")

    @property
    def lengths(self) -> list[int]:
        return [int(each) for each in self.chunks.split(",")]


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalRecipe(ChunkRecipe):
    """Of the factors of a causal Whisper, whose rows are of 20 ms."""

    steps: Steps = 400
    batch: Annotated[int, "Sounds per update.", at_least(1)] = 2
    moments: Annotated[int, "Ends of chunks per sound, the last one included.", at_least(1)] = 3
    rank: Annotated[int, "Of the factors.", at_least(1)] = 32  # as in the paper
    rate: Annotated[float, "Highest learning rate.", RATE] = 5e-4
    chunks: Annotated[str, "Rows of a chunk, with commas; one of these an update."] = "15,25,50"
