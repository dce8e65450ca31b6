"""Block-parallel drafter: a block of tokens in one pass, by a network of this house.

A decoder layer reads the context. A second layer runs over slots (learned embeddings added to
the root's state), which attend causally to one another and to the keys of the first layer. In
DFlash slots are masks that see one another both ways, and no layer reads the context before.
"""

from __future__ import annotations

from typing import ClassVar

from paceline.drafters.network.drafter import TrainedDrafter
from paceline.models.config import ModelConfig
from paceline.models.ops import Ops, Rows
from paceline.networks.base import Network, Shapes
from paceline.networks.blocks import slot_shapes, slots_behind


class BlockParallel(Network):
    """Draft `width` tokens in one pass; `ffn_size` 0 takes the target's own."""

    name: ClassVar[str] = "block-parallel"
    layers: ClassVar[int] = 1

    def __init__(self, config: ModelConfig, *, width: int = 4, ffn_size: int = 0) -> None:
        super().__init__(config, steps=1, width=width)
        self.ffn_size = ffn_size or config.ffn_size

    def shapes(self) -> Shapes:
        return slot_shapes(self.config, self.width, self.ffn_size)

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        return slots_behind(ops, self.config, features, tokens, "draft")


class BlockParallelDrafter(TrainedDrafter):
    name: ClassVar[str] = "block-parallel"
