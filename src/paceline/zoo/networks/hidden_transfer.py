"""Hidden transfer: pseudo hidden states of the next tokens (Wu et al. 2024, arXiv:2404.12022).

Trained linear maps predict the high layer's inputs; the target's last layers, frozen, run on them
in a pass of its own, so that verification stays bit-exact (the paper runs them in the same one).
"""

from __future__ import annotations

from typing import Any, ClassVar

from paceline.core.options import require
from paceline.drafters.network.drafter import TrainedDrafter
from paceline.models.config import feature_layers
from paceline.networks.base import Geometry, Network, Shapes
from paceline.networks.blocks import stack
from paceline.networks.ops import Ops, Rows, Sight


class HiddenTransfer(Network):
    """Draft `width` tokens in one pass of the target's last layers.

    Raises:
        InvalidOption: a size is out of range, or the geometry lacks the number of layers.
    """

    name: ClassVar[str] = "hidden-transfer"

    def __init__(self, geometry: Geometry, *, width: int = 4) -> None:
        super().__init__(geometry, steps=1, width=width)
        count = geometry.target_layers
        require(count >= 1, "target_layers of a geometry", count, "1 or more for hidden transfer")
        self.above = count - feature_layers(count)[-1]
        self.layers = self.above  # type: ignore[misc]

    def settings(self) -> dict[str, Any]:
        return {"width": self.width}

    def shapes(self) -> Shapes:
        # The maps start as zero: every pseudo state starts as a copy of the newest hidden state.
        width = self.geometry.width
        return {
            "scale": (3 * width,),
            "state_norm": (width,),
            "embed_norm": (width,),
            "fuse": (width, 5 * width),
            "transfer.residual": (self.width * width, width),
            "high_spread": (width,),
            "norm": (width,),
        }

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        width = self.geometry.width
        inner, _ = ops.split(features, (3 * width, width))
        high = ops.split(inner, (width, width, width))[2]
        # Through `x`, pseudo states hang on the text's rows in every layer, which are in the caches
        # then, whatever order a runtime computes in.
        x = self.last_layers(ops, high, "last")
        embedded = ops.norm(ops.last(ops.embed(tokens)), "embed_norm")
        scaled = ops.last(inner) * ops.weight("scale")
        read = ops.concat([scaled, ops.norm(x, "state_norm"), embedded])
        moved = ops.linear(ops.linear(read, "fuse"), "transfer.residual")
        pseudo = ops.last(high) + ops.slots(moved, self.width) * ops.weight("high_spread")
        return self.last_layers(ops, pseudo, "draft")

    def last_layers(self, ops: Ops, x: Rows, sees: Sight) -> Rows:
        """Return the last layer's output, before its norm, from the high layer's input."""
        return stack(ops, "target", self.layers, x, sees)

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        return ops.head(state, norm="norm")


class HiddenTransferDrafter(TrainedDrafter):
    """Slots carried through the target's last layers."""

    name: ClassVar[str] = "hidden-transfer"
