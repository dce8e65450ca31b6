"""A block of tokens in one pass (SpecFormer; DFlash; method family of parallel drafters).

One decoder layer reads the context, root included. Slots with learned embeddings, added to what it
says of the root, stand for the tokens to come. A second layer lets them attend to the context,
whose keys and values are those of the first layer, and to the slots before them. Then all become
tokens at once, by the target's LM head.
"""

from __future__ import annotations

from typing import Any, ClassVar

from paceline.networks.base import Geometry, Network, Shapes
from paceline.networks.ops import Ops, Rows
from paceline.networks.slots import slot_shapes, slots_behind


class BlockParallel(Network):
    """Drafts `width` tokens in one pass over the slots."""

    name: ClassVar[str] = "block-parallel"
    layers: ClassVar[int] = 1

    def __init__(self, geometry: Geometry, *, width: int = 4, ffn_size: int = 0) -> None:
        """Size the network.

        Args:
            geometry: of the target.
            width: tokens per pass.
            ffn_size: of both layers; 0 takes the target's own.
        """
        super().__init__(geometry, steps=1, width=width)
        self.ffn_size = ffn_size or geometry.ffn_size

    def settings(self) -> dict[str, Any]:
        """All sizes."""
        return {"width": self.width, "ffn_size": self.ffn_size}

    def shapes(self) -> Shapes:
        """Fusion, the context's layer, slots and their layer."""
        return slot_shapes(self.geometry, self.width, self.ffn_size)

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        """The context layer, then the slots behind each context row."""
        attend = ops.attend_draft
        return slots_behind(ops, self.geometry, self.ffn_size, features, tokens, attend)

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        """By the target's LM head, after a norm."""
        return ops.head(ops.norm(state, "norm"))
