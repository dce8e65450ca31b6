"""Medusa network: one residual head per depth (Cai et al. 2024, section 2.1).

All heads share the target's LM head.
"""

from __future__ import annotations

from typing import ClassVar

from paceline.models.config import ModelConfig
from paceline.models.ops import Ops, Rows
from paceline.networks.base import Network, Shapes
from paceline.networks.blocks import last_hidden


class Medusa(Network):
    """Draft depths 1 to `width` at once, independent of drafted tokens and of the root."""

    name: ClassVar[str] = "medusa"

    def __init__(self, config: ModelConfig, *, width: int = 4) -> None:
        super().__init__(config, steps=1, width=width)

    def shapes(self) -> Shapes:
        # Starts as zero: every head starts as the target's own prediction.
        return {"heads.residual": (self.width * self.config.hidden_size, self.config.hidden_size)}

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        # h + silu(U_i h) for every head i, in slots.
        hidden = ops.last(last_hidden(ops, self.config, features))
        moved = ops.silu(ops.slots(ops.linear(hidden, ["heads.residual"]), self.width))
        return hidden + moved

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        return ops.head(state)
