"""LongSpec drafter: attention over a window of constant size (Yang et al. 2025, arXiv:2502.17421).

An EAGLE-3 layer sees `reach` rows; earlier text comes through the target's features or, with
`cross`, by cross-attention to the target's KV cache, without a copy. The paper takes the last
layer's cache, here that of the layer the high features enter, which training can compute from
features. With `cross` training moves texts, but for their first tokens, by random offsets
(anchor-offset indices), so that it attends over distances that its texts do not have. Without it
offsets would change little: rotary positions are relative.
"""

from __future__ import annotations

from typing import Any, ClassVar

from paceline.core.options import require
from paceline.core.types import Needs
from paceline.drafters.network.drafter import TrainedDrafter
from paceline.models.config import feature_layers
from paceline.networks.base import Geometry, Shapes
from paceline.networks.blocks import attention, feed_forward
from paceline.networks.eagle3 import Eagle3
from paceline.networks.ops import Ops, Rows, Sight

_LENT = ("target.0.norm", "target.0.qkv")


class LongSpec(Eagle3):
    """Draft one token per pass of its layer, over the last `reach` rows.

    `cross` also attends to the target's KV cache of all rows; it needs the target's layer count.
    """

    name: ClassVar[str] = "longspec"

    def __init__(
        self,
        geometry: Geometry,
        *,
        steps: int = 5,
        ffn_size: int = 0,
        reach: int = 512,
        cross: bool = False,
        farthest: int = 16384,
    ) -> None:
        super().__init__(geometry, steps=steps, ffn_size=ffn_size)
        require(reach >= 1, "reach", reach, "1 or more")
        self.reach = reach
        self.reads_target = cross
        if cross:
            self.farthest = farthest
            count = geometry.target_layers
            require(count >= 1, "target_layers of a geometry", count, "1 or more for cross")
            self.above = count - feature_layers(count)[-1]

    def settings(self) -> dict[str, Any]:
        told = {**super().settings(), "reach": self.reach, "cross": self.reads_target}
        return {**told, "farthest": self.farthest} if self.reads_target else told

    def shapes(self) -> Shapes:
        shape, out = self.geometry, super().shapes()
        if self.reads_target:
            wide = shape.heads * shape.head_dim
            out |= {
                "cross.norm": (shape.width,),
                "cross.q": (wide, shape.width),
                "cross.o.residual": (shape.width, wide),
            }
        return out

    def target_weights(self) -> dict[str, str]:
        return {mine: theirs for mine, theirs in super().target_weights().items() if mine in _LENT}

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        shape = self.geometry

        def make() -> tuple[Rows, Rows]:
            high = ops.split(features, (2 * shape.width, shape.width, shape.width))[1]
            rows = ops.linear(high, "target.0.qkv", norm="target.0.norm")
            wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
            _, keys, values = ops.split(rows, (wide, narrow, narrow))
            return keys, values

        if self.reads_target:
            ops.know_target(make)
        return super().start(ops, features, tokens)

    def _decode(self, ops: Ops, x: Rows, read: Rows, sees: Sight) -> Rows:
        if not self.reads_target:
            return super()._decode(ops, x, read, sees)
        x = attention(ops, "layer", x, sees, read=read)
        asking = ops.linear(x, "cross.q", norm="cross.norm")
        x = ops.linear(ops.attend_target(asking), "cross.o.residual", plus=x)
        return feed_forward(ops, "layer", x)


class LongSpecDrafter(TrainedDrafter):
    """A drafter whose cache does not grow."""

    name: ClassVar[str] = "longspec"
    needs: Needs = Needs(features=True)
